"""Where a worker's time goes: clocks in shared memory that the learner reads while the worker runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, process_time

import numpy as np

WALL = ("env", "act", "write", "wait")
CPU = ("env_cpu", "act_cpu", "write_cpu")
CLOCKS = (*WALL, *CPU)
"""Seconds spent stepping, acting, writing rows and waiting for free slots. Then the CPU time of the first three: on a machine
whose cores are short, the rest of their wall time is waiting for a core."""

_CPU_CLOCK = {name.removesuffix("_cpu"): CLOCKS.index(name) for name in CPU}


class Clocks:
    """One worker's clocks. seconds: float64 `[len(CLOCKS)]`, added to in place; several groups of a worker share them."""

    def __init__(self, seconds: np.ndarray) -> None:
        self._seconds = seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a `with` block to the clock of that name, and its CPU time too if that is counted.

        CPU time is that of the whole process, because native environments step in threads of their own.
        """
        started, started_cpu = perf_counter(), process_time()
        yield
        self._seconds[CLOCKS.index(name)] += perf_counter() - started
        if name in _CPU_CLOCK:
            self._seconds[_CPU_CLOCK[name]] += process_time() - started_cpu


def cpu_seconds(seconds: np.ndarray) -> float:
    """CPU time of all workers together, from their clocks `[workers, len(CLOCKS)]`."""
    return float(seconds[:, len(WALL) :].sum())


def busy_seconds(seconds: np.ndarray) -> float:
    """Wall time that one worker has spent in steps, from its clocks `[len(CLOCKS)]`. It grows while the worker is alive."""
    return float(seconds[: CLOCKS.index("wait")].sum())
