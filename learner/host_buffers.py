"""Memory of batches on the host, used over and over: fresh memory costs a page fault for every 4 KB that is written."""

from __future__ import annotations

from collections import deque

import torch

from replay.trajectory import Arrays, TrajectoryContract


class HostBuffers:
    """Lends memory for one batch at a time, `[batch_size, *shape]` each field; allocates only when none is free.

    pinned: page-locked, so that copies to a GPU need not be waited for. Any thread may take, any other may give back.
    """

    def __init__(self, contract: TrajectoryContract, batch_size: int, *, pinned: bool = False) -> None:
        self.contract = contract
        self.batch_size = batch_size
        self.pinned = pinned
        self.allocated = 0
        self._free: deque[Arrays] = deque()

    def take(self) -> Arrays:
        """Memory that nobody else writes or reads until it is given back."""
        try:
            return self._free.pop()
        except IndexError:
            return self._allocate()

    def give_back(self, columns: Arrays) -> None:
        """Once for each `take`, when nothing reads it any more."""
        self._free.append(columns)

    def _allocate(self) -> Arrays:
        self.allocated += 1
        arrays = self.contract.allocate(self.batch_size)
        if self.pinned:
            return {name: torch.from_numpy(array).pin_memory().numpy() for name, array in arrays.items()}
        return arrays
