"""The old name of `tools.watch`."""

from benchmarks.output import refuse_old_name

refuse_old_name("watch")
