"""Elite replay: a batch takes the random candidates that suit the current policy best.

The number of candidates shrinks to the number taken over `annealing_factor` times the length of the run. After that, sampling
is uniform and needs no forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from replay.base import ReplayConfig, ReplayContext, behaviour_distances
from replay.kinds.ring_replay import RingReplay
from replay.kinds.selection import STRATEGIES, annealed_multiplier
from replay.ring.retention import require_encode


class EliteReplay(RingReplay):
    """Measures how far the current network is from the one that acted, and selects among candidates by a strategy."""

    keys = ("insert_strategy", "device")
    keeps_newest = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        super().__init__(config, context)
        self.progress = context.progress
        self.encode = require_encode(config, context)
        self.divergence = context.policy_divergence
        self.strategy = STRATEGIES[config.elite_sampling_strategy]

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        config, distances = self.config, None
        multiplier = annealed_multiplier(config.lambda_batch_multiplier, config.annealing_factor, self.progress())
        slots = self.ring.candidates(count, multiplier)  # int64 [n], all different unless few are stored
        if len(slots) > count:  # at lambda = 1 there is no choice, so no forward pass
            trajectories = self.ring.read(slots)
            distances = behaviour_distances(config, self.encode(trajectories), trajectories, self.divergence)  # [n]
            chosen = self.strategy(distances, self.ring.draws[slots], count)  # positions among the candidates, [count]
            slots, distances = slots[chosen], distances[chosen]
        return self.ring.give(slots, out, distances)
