"""The old name of `tools.report`."""

from benchmarks.output import refuse_old_name

refuse_old_name("report")
