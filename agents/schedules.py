"""Schedules of scalars over the run, as pure functions of its progress."""

from __future__ import annotations


def linear_schedule(start: float, end: float, progress: float) -> float:
    """The value on a line from `start` at progress 0 to `end` at progress 1; it stays there beyond.

    progress: FRESH environment frames so far, divided by the run's budget. Replayed frames do not count.
    """
    if progress < 0:
        raise ValueError(f"progress: wanted 0 or more, got {progress}")
    return start + (end - start) * min(1.0, progress)
