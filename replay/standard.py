"""Standard replay: a ring of the newest trajectories, sampled uniformly with replacement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from replay.base import Replay, copy_rows
from replay.trajectory import TrajectoryContract


class StandardReplay(Replay):
    """Ring of `capacity` trajectories; gives nothing before `min_fill` of them were written."""

    gives_replayed = True

    def __init__(self, contract: TrajectoryContract, capacity: int, min_fill: int, generator: np.random.Generator) -> None:
        self.capacity = capacity
        self.min_fill = max(1, min(min_fill, capacity))
        self.storage = contract.allocate(capacity)
        self.generator = generator
        self.next_row = 0
        self.size = 0

    def has_room(self) -> bool:
        return True

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        for name, array in self.storage.items():
            array[self.next_row] = trajectory[name]
        # Published only now that its data is written.
        self.next_row = (self.next_row + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def can_sample(self, count: int) -> bool:
        return self.size >= self.min_fill

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        if not self.can_sample(count):
            raise RuntimeError(f"standard replay: wanted {self.min_fill} trajectories before sampling, has {self.size}")
        copy_rows(self.storage, self.generator.integers(self.size, size=count), out)
