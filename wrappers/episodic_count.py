"""A reward for observations that are rare in their episode (`--episodic_count`).

    r_t + weight / sqrt(N(x_{t+1})),  N = visits of the observation in this episode, with this one

Such counts are part of RIDE (Raileanu and Rocktaeschel 2020, arXiv:2002.12292) and NovelD (Zhang et al. 2021, NeurIPS) on
MiniGrid, whose observations take few values. The reported returns stay those of the environment.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from wrappers.spec import Step, VectorEnv


class EpisodicCount(VectorEnv):
    """Environments whose rewards hold the bonus. The newest frame is what is counted.

    Args:
        env: the environments.
        weight: of the bonus.
    """

    def __init__(self, env: VectorEnv, weight: float) -> None:
        self.env, self.weight = env, weight
        self.spec = replace(env.spec, goals=None)  # another goal would not change the bonus as it changes the reward
        self.num_envs, self.needs_close = env.num_envs, env.needs_close
        self._visits: list[Counter[bytes]] = [Counter() for _ in range(self.num_envs)]

    def reset(self, seed: int) -> np.ndarray:
        observations = self.env.reset(seed)
        for index in range(self.num_envs):
            self._visits[index].clear()
            self._visit(index, observations)
        return observations

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        rewards = step.rewards.copy()
        for index, begins in enumerate(step.reset):
            if begins:  # the row of an autoreset belongs to no episode, so it has no bonus
                self._visits[index].clear()
            visits = self._visit(index, step.observations)
            rewards[index] += 0.0 if begins else self.weight / math.sqrt(visits)
        return step._replace(rewards=rewards)

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _visit(self, index: int, observations: np.ndarray) -> int:
        """Count the newest frame of `[N, S, *frame_shape]` for environment `index`. Returns its visits."""
        frame = observations[index, -1].tobytes()
        self._visits[index][frame] += 1
        return self._visits[index][frame]
