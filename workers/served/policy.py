"""Acts for some of a worker's environments at a time: for those whose clients have sent an observation."""

from __future__ import annotations

import numpy as np
import torch

from workers.base import WorkerSetup
from workers.policy import Acted, CpuPolicy
from workers.weights import Weights


class SeatPolicy:
    """A `CpuPolicy` that keeps the recurrent state and the exploration of each seat.

    Args:
        setup: of the run.
        weights: where new weights come from.
        seed: of the actions drawn.
    """

    def __init__(self, setup: WorkerSetup, weights: Weights, seed: int) -> None:
        network, seats = setup.make_network(), setup.config.envs_per_worker
        self._policy = CpuPolicy(network, weights, seed, with_features=setup.wants_features)
        self._states = torch.zeros(seats, network.state_size) if network.state_size else None
        self._exploration = network.exploration(torch.arange(seats), seats)  # float32 [C, E]

    @property
    def version(self) -> int:
        """The learner's update count of the weights that act."""
        return self._policy.version

    def is_old(self) -> bool:
        """Whether the learner has published newer weights."""
        return self._policy.version != self._policy.weights.published_version

    def refresh(self) -> None:
        """Take the newest weights."""
        self._policy.refresh()

    def act(self, seats: np.ndarray, observations: np.ndarray, first: np.ndarray) -> Acted:
        """Sample an action for each of M seats. The answer holds recurrent states, if there is a core. Raises NotFiniteError.

        Args:
            seats: int `[M]`, their numbers.
            observations: `[M, S, *frame_shape]`.
            first: bool `[M]`, whether each observation is its episode's first.
        """
        policy, chosen = self._policy, torch.from_numpy(seats)
        if self._states is not None:
            policy.state = self._states[chosen]
        if self._exploration is not None:
            policy.exploration = self._exploration[chosen]
        acted = policy.act(observations, first, with_state=True)
        if self._states is not None and policy.state is not None:
            self._states[chosen] = policy.state
        if self._exploration is not None and policy.exploration is not None:
            self._exploration[chosen] = policy.exploration
        return acted
