"""Times parts of the work in short windows that alternate, so that a busy moment of the machine spoils no part alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

Clock = Callable[[], float]

CPU = torch.device("cpu")

WINDOWS = 5
"""Windows of each part. A burst of other work, such as worker processes that start, then falls into windows of all parts."""

GPU_WARM_UP = 3
"""Calls on a GPU that are not counted: the first ones load libraries and kernels for seconds."""

WAITS = 2.0
"""Work waits, as for another program, if even its shortest call takes this many times its CPU time. A busy machine makes many
calls longer, but seldom all of them."""

SLOW_CALL = 1.0
"""Seconds from which on the first call on a CPU counts: libraries are a small part of it, and another call takes too long."""


class Timing(NamedTuple):
    """Seconds of one call, by the clock of its part and by the wall."""

    own: float
    wall: float


@dataclass(frozen=True)
class TimedPart:
    """One part of the work, built and alone.

    Args:
        call: does the work of `steps` agent steps.
        steps: agent steps of one call.
        clock: seconds that the work takes, CPU or wall time.
        close: frees what the part holds.
        device: the device that computes.
    """

    call: Callable[[], object]
    steps: int
    clock: Clock
    close: Callable[[], None] = lambda: None
    device: torch.device = CPU

    def seconds_a_step(self, budget: float) -> float:
        """Median seconds of one step over calls of about `budget` seconds."""
        return seconds_of_steps({"": self}, budget)[""]

    def time_call(self) -> Timing:
        """Make one call."""
        started, started_by_wall = self.clock(), time.perf_counter()
        self.call()
        return Timing(self.clock() - started, time.perf_counter() - started_by_wall)

    def warm_up(self) -> list[Timing]:
        """Make the first calls. Returns those that count: none, but for a slow one on a CPU."""
        if self.device.type == "cuda":
            for _ in range(GPU_WARM_UP):
                self.call()
            return []
        first = self.time_call()
        return [first] if first.own >= SLOW_CALL else []


def seconds_of_steps(parts: Mapping[str, TimedPart], budget: float) -> dict[str, float]:
    """Median seconds of one step of each part.

    Args:
        parts: name -> part.
        budget: seconds of calls of each part, by the wall. The warm-up comes before, and each part is called at least once.
    """
    timings = {name: part.warm_up() for name, part in parts.items()}
    for window in range(1, WINDOWS + 1):
        for name, part in parts.items():
            while sum(timing.wall for timing in timings[name]) < budget * window / WINDOWS:
                timings[name].append(part.time_call())
    return {name: _median(timings[name]) / part.steps for name, part in parts.items()}


def _median(timings: list[Timing]) -> float:
    """Median seconds of a call: by the part's own clock, unless that clock stood still during a call or the work waits.

    In a sandbox (gVisor) CPU time may tick only a hundred times a second.
    """
    by_own, by_wall = zip(*timings, strict=True)
    own = float(statistics.median(by_own))
    return own if all(by_own) and min(by_wall) <= WAITS * own else float(statistics.median(by_wall))
