"""Who keeps the cores busy: the workers, the learner's process, what else the run started, other programs, or nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from learner.metrics.statistics import Record

BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and what the host of a virtual machine took (steal)."""


class CoreUse:
    """CPU time since the last reading, in cores.

    cores: how many this process may use. workers: CPU seconds that all workers have used so far. inside: whether they run in
    this process.
    """

    def __init__(self, cores: int, workers: Callable[[], float], *, inside: bool) -> None:
        self.cores = cores
        self._workers = workers
        self._inside = inside
        self._before = self._totals()

    def read(self, passed: float, own: float) -> Record:
        """Over the `passed` seconds since the last reading. `cores/others` is absent where the system does not tell.

        own: cores that all processes of the run kept busy. Those beside workers and learner evaluate, or only just start.
        """
        totals = self._totals()
        used = {name: (seconds - self._before.get(name, 0.0)) / passed for name, seconds in totals.items()}
        self._before = totals
        row = {"cores/workers": used["workers"], "cores/learner": used["learner"]}
        row["cores/evaluation"] = max(0.0, own - sum(row.values()))
        if "all" in used:
            row["cores/others"] = max(0.0, used["all"] - sum(row.values()))
        return {**row, "cores/idle": max(0.0, self.cores - sum(row.values()))}

    def _totals(self) -> Record:
        workers = self._workers()
        totals = {"workers": workers, "learner": time.process_time() - (workers if self._inside else 0.0)}
        if (everybody := _all_programs(self.cores)) is not None:
            totals["all"] = everybody
        return totals


def _all_programs(cores: int) -> float | None:
    """CPU seconds of all programs since the system started, on the cores of this process; None where that is not known, or
    where a container's quota leaves less than those cores, whoever else is on them."""
    if not hasattr(os, "sched_getaffinity") or len(mine := os.sched_getaffinity(0)) != cores:
        return None
    try:
        return busy_seconds(Path("/proc/stat").read_text(), mine) or None  # nothing but zeros in a sandbox (gVisor)
    except OSError:
        return None


def busy_seconds(statistics: str, cores: Collection[int]) -> float:
    """CPU seconds that /proc/stat (its text) has for these cores, not counting idle ones."""
    rows = (line.split() for line in statistics.splitlines())
    mine = {f"cpu{core}" for core in cores}
    ticks = sum(int(row[1 + column]) for row in rows if row and row[0] in mine for column in BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
