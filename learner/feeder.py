"""The batch feeder: takes filled slots from the workers, lets every replay copy them, gives the slots back, draws batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from replay.mixture import HostBatch, Mixture
from workers import Block, Workers

POLL_SECONDS = 0.2

Listener = Callable[[Mapping[str, np.ndarray]], None]


class BatchFeeder:
    """Connects workers and mixture. Where a replay has no room, trajectories wait in their slots and so do the workers.

    listener: called with each fresh trajectory (`[*shape]` each field) once, as it arrives.
    """

    def __init__(self, workers: Workers, mixture: Mixture, listener: Listener) -> None:
        self.workers = workers
        self.mixture = mixture
        self.listener = listener
        self._pending: deque[tuple[Block, int]] = deque()  # a block and how many of its trajectories were taken

    def next_batch(self, should_stop: Callable[[], bool]) -> HostBatch | None:
        """The next batch, waiting for fresh trajectories where needed; None when asked to stop. Raises WorkerError."""
        self._receive(0.0)
        while not self.mixture.can_sample():
            if should_stop():
                return None
            self._receive(POLL_SECONDS)
        return self.mixture.sample()

    def _receive(self, timeout: float) -> None:
        if not self._pending:
            self._pending.extend((block, 0) for block in self.workers.poll(timeout))
        while self._pending and self._take_one():
            pass

    def _take_one(self) -> bool:
        if not self.mixture.can_insert():
            return False
        block, taken = self._pending.popleft()
        slot = block.first_slot + taken
        trajectory = {name: array[slot] for name, array in self.workers.slots.items()}
        self.mixture.insert(trajectory)
        self.listener(trajectory)
        if taken + 1 == block.slot_count:
            self.workers.release(block)
        else:
            self._pending.appendleft((block, taken + 1))
        return True
