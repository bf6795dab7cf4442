"""Bandit, a contextual bandit: each step shows a context, and the choice of an arm pays at once.

The mean payment of an arm is linear in the context, with weights that are the same in all environments and runs, and noise is
added. A choice has no effect on later contexts. The episode ends after 10 choices.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import Discrete
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

ARMS, FEATURES, CHOICES = 5, 6, 10
NOISE = 0.1
WEIGHTS = np.random.default_rng(0).normal(size=(ARMS, FEATURES)).astype(np.float32) / np.float32(FEATURES**0.5)
"""`[arms, features]`: the mean payment of an arm is the product of its row and the context."""


class Bandit(Toy):
    """N bandits. An observation is a context of normally distributed numbers, float32 `[6]`."""

    env_id = "Bandit-v0"
    frame_shape = (FEATURES,)
    frame_dtype = "float32"
    action = Discrete(ARMS)

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._contexts = np.zeros((num_envs, CHOICES + 1, FEATURES), dtype=np.float32)
        self._noise = np.zeros((num_envs, CHOICES), dtype=np.float32)

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._contexts[index] = generator.normal(size=(CHOICES + 1, FEATURES))
        self._noise[index] = NOISE * generator.normal(size=CHOICES)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        which, choice = np.arange(self.num_envs), (self.steps - 1) % CHOICES
        means = (self._contexts[which, choice] * WEIGHTS[actions]).sum(1)
        return means + self._noise[which, choice], self.steps == CHOICES

    def frames(self) -> np.ndarray:
        return self._contexts[np.arange(self.num_envs), self.steps]

    def board(self) -> np.ndarray:
        """A bar for each number of the context."""
        heights = np.clip(np.round(2 * self.frames()[0]) + 4, 1, 8)
        return np.where(np.arange(8)[::-1, None] < heights, 255, 0).astype(np.uint8)
