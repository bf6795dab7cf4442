"""Reuses host memory for batches: fresh memory costs a page fault for every 4 KB that is written."""

from __future__ import annotations

from collections import deque

import torch

from agents.engine.streams import Fence
from replay.trajectory import Arrays, TrajectoryContract


class HostBuffers:
    """Lends memory for one draw at a time, each field `[batch_size, *shape]`; allocates only if none is free.

    Any thread may take memory, and any other may give it back.

    Args:
        contract: fields of a trajectory, and of the windows that a batch is made of.
        batch_size: columns of a draw.
        pinned: allocate page-locked memory. A copy of it to a GPU runs in parallel with its thread; `take` waits for the copy.
    """

    def __init__(self, contract: TrajectoryContract, batch_size: int, *, pinned: bool = False) -> None:
        self.contract = contract
        self.batch_size = batch_size
        self.pinned = pinned
        self.allocated = 0
        self._free: deque[tuple[Arrays, Fence | None]] = deque()

    def take(self) -> Arrays:
        """Memory for a batch, which no other caller uses until it is given back."""
        try:
            columns, copied = self._free.popleft()  # the oldest: its copy is done first
        except IndexError:
            return self._allocate()
        if copied:
            copied.wait()
        return columns

    def give_back(self, columns: Arrays, copied: Fence | None = None) -> None:
        """Return memory, once per `take`. A copy to a GPU may still read it until the fence `copied` is passed."""
        self._free.append((columns, copied))

    def _allocate(self) -> Arrays:
        self.allocated += 1
        arrays = self.contract.allocate_batch(self.batch_size)
        if self.pinned:
            return {name: torch.from_numpy(array).pin_memory().numpy() for name, array in arrays.items()}
        return arrays
