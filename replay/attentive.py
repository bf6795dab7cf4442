"""Attentive replay: of several times as many random candidates, a batch takes those most like where the environments are now.

The idea is Attentive Experience Replay (Sun et al., AAAI 2020), carried over from single transitions and one environment to
trajectories and many. The multiple shrinks to one over the run; then sampling is uniform and costs no forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from replay.base import Encoded, Replay, ReplayConfig, ReplayContext
from replay.distances import POLICY_DISTANCES, state_distances
from replay.retention import make_ring, require_encode
from replay.selection import annealed_multiplier, nearest


class AttentiveReplay(Replay):
    """Anchors are the last rows of each environment's newest stored trajectory, as the current network sees them."""

    gives_replayed = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        self.config = config
        self.progress = context.progress
        self.encode = require_encode(config, context)
        self.ring = make_ring(config, context)
        self.newest: dict[int, int] = {}  # environment -> slot

    def has_room(self) -> bool:
        return True

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        row = self.ring.insert(trajectory)
        if row is not None:
            self.newest = {environment: slot for environment, slot in self.newest.items() if slot != row}
            self.newest[int(trajectory["environment_id"])] = row

    def can_sample(self, count: int) -> bool:
        return self.ring.is_ready

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        config, scores = self.config, None
        multiplier = annealed_multiplier(config.lambda_batch_multiplier, config.alfa_annealing_factor, self.progress())
        rows = self.ring.candidates(count, multiplier)
        if len(rows) > count:
            scores = self._scores(rows)
            chosen = nearest(scores, self.ring.draws[rows], count)
            rows, scores = rows[chosen], scores[chosen]
        self.ring.give(rows, out, scores)

    def metrics(self) -> dict[str, float]:
        return self.ring.metrics()

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores `[n]` of candidates; what is candidate and anchor at once is encoded once."""
        anchors = np.array(list(self.newest.values()))
        encoded_rows, position = np.unique(np.concatenate([rows, anchors]), return_inverse=True)
        states = self._states(self.encode(self.ring.read(encoded_rows)))
        last = states[position[len(rows) :], -1]
        return anchor_scores(states[position[: len(rows)]], last, self.config.dist_function, self.config.p)

    def _states(self, encoded: Encoded) -> np.ndarray:
        return encoded.logits if self.config.dist_function in POLICY_DISTANCES else encoded.features


def anchor_scores(states: np.ndarray, anchors: np.ndarray, dist_function: str, p: float) -> np.ndarray:
    """min over anchors of mean over t of dist(state, anchor). states `[n, T, F]`, anchors `[E, F]`. Returns `[n]`."""
    count, length, width = states.shape
    distances = state_distances(dist_function, p, states.reshape(count * length, width), anchors)
    return distances.reshape(count, length, len(anchors)).mean(axis=1).min(axis=1)
