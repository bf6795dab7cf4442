"""Schedules of scalars over environment frames, as pure functions."""

from __future__ import annotations


def linear_schedule(start: float, end: float, frames: int, total_frames: int) -> float:
    """The value after `frames`, on a line from `start` at 0 to `end` at `total_frames` and from there on.

    Args:
        frames: FRESH environment frames so far (steps times frames per step); replayed ones do not count.
        total_frames: where the line ends, in the same unit.
    """
    if frames < 0:
        raise ValueError(f"frames: wanted 0 or more, got {frames}")
    if total_frames <= 0:
        raise ValueError(f"total_frames: wanted 1 or more, got {total_frames}")
    return start + (end - start) * min(1.0, frames / total_frames)
