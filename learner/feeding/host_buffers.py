"""Memory of batches on the host, used over and over: fresh memory costs a page fault for every 4 KB that is written."""

from __future__ import annotations

from collections import deque

import torch

from agents.streams import Fence
from replay.trajectory import Arrays, TrajectoryContract


class HostBuffers:
    """Lends memory for one batch at a time, `[batch_size, *shape]` each field; allocates only when none is free.

    pinned: page-locked, so that whoever starts a copy to a GPU need not wait for it; `take` waits. Any thread may take, any
    other may give back.
    """

    def __init__(self, contract: TrajectoryContract, batch_size: int, *, pinned: bool = False) -> None:
        self.contract = contract
        self.batch_size = batch_size
        self.pinned = pinned
        self.allocated = 0
        self._free: deque[tuple[Arrays, Fence | None]] = deque()

    def take(self) -> Arrays:
        """Memory that nobody else writes or reads until it is given back."""
        try:
            columns, copied = self._free.popleft()  # the one that was given back first: its copy is done soonest
        except IndexError:
            return self._allocate()
        if copied:
            copied.wait()
        return columns

    def give_back(self, columns: Arrays, copied: Fence | None = None) -> None:
        """Once for each `take`, when nothing reads it any more but a copy that is done when `copied` is."""
        self._free.append((columns, copied))

    def _allocate(self) -> Arrays:
        self.allocated += 1
        arrays = self.contract.allocate(self.batch_size)
        if self.pinned:
            return {name: torch.from_numpy(array).pin_memory().numpy() for name, array in arrays.items()}
        return arrays
