"""Schedules of scalars over the run, as functions of its progress alone, so that a resumed run needs nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def linear_schedule(start: float, end: float, progress: float) -> float:
    """The value on a line from `start` at progress 0 to `end` at progress 1; it stays there beyond.

    progress: FRESH environment frames so far, divided by the run's budget. Replayed frames do not count.
    """
    if progress < 0:
        raise ValueError(f"progress: wanted 0 or more, got {progress}")
    return start + (end - start) * min(1.0, progress)


def ends_of(config: Any, first: str, last: str) -> tuple[float, float]:
    """Two settings, at progress 0 and 1; 0 for an agent without them, and the first for a last one of -1 or none."""
    start: float = getattr(config, first, 0.0)
    end: float = getattr(config, last, -1.0)
    return start, start if end == -1 else end


class ScheduledWeight:
    """The weight of a term of a loss, which stays or moves linearly over the run.

    moves: whether it moves. now: a number if it stays; otherwise float32 `[]` on the device, which a CUDA graph reads anew in
    each update.

    Args:
        first, last: at progress 0 and 1.
        device: of the losses.
    """

    def __init__(self, first: float, last: float, device: torch.device) -> None:
        self._ends = first, last
        self.moves = last != first
        self.now: float | Tensor = torch.full((), first, device=device) if self.moves else first

    def move(self, progress: float) -> None:
        """Set the weight of the next update, if it moves. progress: as `linear_schedule` takes it."""
        if isinstance(self.now, Tensor):
            self.now.fill_(linear_schedule(*self._ends, progress))

    def metrics(self, name: str) -> dict[str, Tensor]:
        """The weight of this update under this name if it moves."""
        return {name: self.now.clone()} if isinstance(self.now, Tensor) else {}
