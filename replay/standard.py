"""Standard replay: trajectories of the past, sampled uniformly with replacement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from replay.base import Replay, ReplayConfig, ReplayContext
from replay.retention import make_ring


class StandardReplay(Replay):
    """Gives nothing before `min_fill` trajectories were written; what a full ring keeps is its retention's business."""

    gives_replayed = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        self.ring = make_ring(config, context)

    def has_room(self) -> bool:
        return True

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        self.ring.insert(trajectory)

    def can_sample(self, count: int) -> bool:
        return self.ring.is_ready

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        self.ring.give(self.ring.uniform(count), out)

    def metrics(self) -> dict[str, float]:
        return self.ring.metrics()
