"""Measures what keeps the cores busy: workers, the learner's process, evaluation, and other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from learner.metrics.statistics import Record

BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and steal (time that the host of a virtual machine took)."""


class CoreUse:
    """CPU time since the last reading, in cores.

    Args:
        cores: that this process may use.
        workers: returns the CPU seconds that all workers have used so far.
        inside: whether the workers run in this process.
        others: returns the CPU seconds of the run's other learners: their workers, and they themselves.
    """

    def __init__(
        self,
        cores: int,
        workers: Callable[[], float],
        *,
        inside: bool,
        others: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        self.cores = cores
        self._workers = workers
        self._inside = inside
        self._others = others
        self._before = self._totals()

    def read(self, passed: float, own: float) -> Record:
        """Busy and idle cores over the `passed` seconds since the last reading.

        `cores/evaluation` is the rest of the run: evaluation, and processes that start. `cores/others` is absent if the system
        does not report other programs.

        Args:
            passed: seconds since the last reading.
            own: cores that all processes of the run kept busy.
        """
        totals = self._totals()
        used = {name: (seconds - self._before.get(name, 0.0)) / passed for name, seconds in totals.items()}
        self._before = totals
        record = {"cores/workers": used["workers"], "cores/learner": used["learner"]}
        # The clocks are read at slightly different moments, so a difference may come out below 0.
        record["cores/evaluation"] = max(0.0, own - sum(record.values()))
        if "all" in used:
            record["cores/others"] = max(0.0, used["all"] - sum(record.values()))
        return {**record, "cores/idle": max(0.0, self.cores - sum(record.values()))}

    def _totals(self) -> Record:
        workers, (other_workers, other_learners) = self._workers(), self._others()
        learner = time.process_time() - (workers if self._inside else 0.0)
        totals = {"workers": workers + other_workers, "learner": learner + other_learners}
        if (all_programs := _all_programs(self.cores)) is not None:
            totals["all"] = all_programs
        return totals


def _all_programs(cores: int) -> float | None:
    """CPU seconds of all programs since the system started, on the cores of this process.

    None if that is not known, or if a container's quota leaves this process only a part of those cores.
    """
    if not hasattr(os, "sched_getaffinity") or len(mine := os.sched_getaffinity(0)) != cores:
        return None
    try:
        return busy_seconds(Path("/proc/stat").read_text(), mine) or None  # a sandbox (gVisor) reports zeros
    except OSError:
        return None


def busy_seconds(statistics: str, cores: Collection[int]) -> float:
    """CPU seconds of these cores, idle time left out. statistics: text of /proc/stat."""
    rows = (line.split() for line in statistics.splitlines())
    mine = {f"cpu{core}" for core in cores}
    ticks = sum(int(row[1 + column]) for row in rows if row and row[0] in mine for column in BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
