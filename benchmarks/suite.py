"""The old name of `tools.suite`."""

from benchmarks.output import refuse_old_name

refuse_old_name("suite")
