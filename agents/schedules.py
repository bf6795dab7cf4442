"""Schedules of scalars over the run, as functions of its progress alone, so that a resumed run needs nothing else."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_schedule(start: float, end: float, progress: float) -> float:
    """The value on a line from `start` at progress 0 to `end` at progress 1; it stays there beyond.

    progress: FRESH environment frames so far, divided by the run's budget. Replayed frames do not count.
    """
    if progress < 0:
        raise ValueError(f"progress: wanted 0 or more, got {progress}")
    return start + (end - start) * min(1.0, progress)


class ScheduledWeight:
    """The weight of a term of a loss, which stays or moves linearly over the run.

    now: a number if it stays; otherwise float32 `[]` on the device, which a CUDA graph reads anew in each update.

    Args:
        first, last: at progress 0 and 1; a last weight of -1 stands for the first.
        device: of the losses.
    """

    def __init__(self, first: float, last: float, device: torch.device) -> None:
        self._ends = first, last
        self.now: float | Tensor = first if last in (-1, first) else torch.full((), first, device=device)

    def move(self, progress: float) -> None:
        """Set the weight of the next update. progress: as `linear_schedule` takes it."""
        if isinstance(self.now, Tensor):
            self.now.fill_(linear_schedule(*self._ends, progress))

    def metrics(self, name: str) -> dict[str, Tensor]:
        """The weight of this update under this name if it moves."""
        return {name: self.now.clone()} if isinstance(self.now, Tensor) else {}
