"""The old name of `tools.curves`."""

from benchmarks.output import refuse_old_name

refuse_old_name("curves")
