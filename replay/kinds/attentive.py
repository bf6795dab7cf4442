"""Attentive replay: a batch takes the random candidates that are most similar to the environments' present states.

Source: Attentive Experience Replay (Sun et al., AAAI 2020), extended from single transitions and one environment to
trajectories and many environments. The number of candidates shrinks to the number taken over `annealing_factor` times the
length of the run. After that, sampling is uniform and needs no forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from replay.base import ReplayConfig, ReplayContext
from replay.kinds.distances import POLICY_DISTANCES, Divergence, state_distances
from replay.kinds.ring_replay import RingReplay
from replay.kinds.selection import annealed_multiplier, nearest
from replay.ring.retention import require_encode
from replay.trajectory import Fields


class AttentiveReplay(RingReplay):
    """Compares candidates with anchors: the last row of each environment's newest stored trajectory."""

    keys = ("insert_strategy", "device")
    keeps_newest = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        super().__init__(config, context)
        self.progress = context.progress
        self.encode = require_encode(config, context)
        self.divergence = context.policy_divergence

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        config, scores = self.config, None
        multiplier = annealed_multiplier(config.lambda_batch_multiplier, config.annealing_factor, self.progress())
        slots = self.ring.candidates(count, multiplier)  # int64 [n], lambda * count of them at most
        if len(slots) > count:  # at lambda = 1 there is no choice, so no forward pass
            scores = self._scores(slots)
            chosen = nearest(scores, self.ring.draws[slots], count)
            slots, scores = slots[chosen], scores[chosen]  # [count] each
        return self.ring.give(slots, out, scores)

    def _scores(self, slots: np.ndarray) -> np.ndarray:
        """Returns the candidates' scores `[n]`; small is similar."""
        # There may be hundreds of environments. Reading and encoding one row of each, instead of a whole trajectory, keeps
        # the anchors cheaper than the candidates.
        newest = np.array(list(self.ring.newest.values()))  # [E], slots
        whole = self.ring.recurrent  # a core must see the rows before the last one
        last_rows = self.ring.read(newest) if whole else self.ring.read_window(newest, self.ring.unroll_length - 1, length=1)
        anchors = self._states(last_rows)[:, -1]  # [E, F], one state for each environment
        states = self._states(self.ring.read(slots))  # [n, T, F]
        return anchor_scores(states, anchors, self.config.dist_function, self.config.p, self.divergence)

    def _states(self, trajectories: Fields) -> np.ndarray:
        """Returns the current network's policies or features of n trajectories' rows, `[n, T, F]`."""
        encoded = self.encode(trajectories)
        return encoded.policy if self.config.dist_function in POLICY_DISTANCES else encoded.features


def anchor_scores(
    states: np.ndarray, anchors: np.ndarray, dist_function: str, p: float, divergence: Divergence | None = None
) -> np.ndarray:
    """Returns min over anchors of mean over t of dist(state, anchor), `[n]`. states `[n, T, F]`, anchors `[E, F]`."""
    count, length, width = states.shape
    # All pairs of states and anchors, [n * T, E].
    distances = state_distances(dist_function, p, states.reshape(count * length, width), anchors, divergence)
    nearest: np.ndarray = distances.reshape(count, length, len(anchors)).mean(axis=1).min(axis=1)  # [n, T, E] -> [n, E] -> [n]
    return nearest
