"""Elite replay: of several times as many random candidates, a batch takes those that suit the current policy best.

The multiple shrinks to one over the run; then sampling is uniform and costs no forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from replay.base import Replay, ReplayConfig, ReplayContext, behaviour_distances
from replay.retention import make_ring, require_encode
from replay.selection import STRATEGIES, annealed_multiplier


class EliteReplay(Replay):
    """Candidates are measured by how far the current network has moved from the one that acted, and picked by a strategy."""

    gives_replayed = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        self.config = config
        self.progress = context.progress
        self.encode = require_encode(config, context)
        self.strategy = STRATEGIES[config.elite_sampling_strategy]
        self.ring = make_ring(config, context)

    def has_room(self) -> bool:
        return True

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        self.ring.insert(trajectory)

    def can_sample(self, count: int) -> bool:
        return self.ring.is_ready

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        config, distances = self.config, None
        multiplier = annealed_multiplier(config.lambda_batch_multiplier, config.alfa_annealing_factor, self.progress())
        rows = self.ring.candidates(count, multiplier)
        if len(rows) > count:
            trajectories = self.ring.read(rows)
            distances = behaviour_distances(config, self.encode(trajectories), trajectories)
            chosen = self.strategy(distances, self.ring.draws[rows], count)
            rows, distances = rows[chosen], distances[chosen]
        self.ring.give(rows, out, distances)

    def metrics(self) -> dict[str, float]:
        return self.ring.metrics()
