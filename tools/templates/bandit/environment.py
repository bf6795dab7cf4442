"""A contextual bandit: each step shows a context, and the choice of an arm pays at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ARMS, FEATURES = 4, 5
CHOICES = 10
"""Choices of an episode. A choice has no effect on later contexts."""


class Bandit(gymnasium.Env[np.ndarray, np.int64]):
    """Put your own contexts into `_context`, and what an arm pays into `_payment`."""

    observation_space = spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)
    action_space = spaces.Discrete(ARMS)

    def __init__(self) -> None:
        # The mean payment of an arm is linear in the context. These weights are the same in all environments.
        self._weights = np.random.default_rng(0).normal(size=(ARMS, FEATURES))
        self._shown = np.zeros(FEATURES, np.float32)
        self._choices = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._choices = 0
        return self._context(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self._payment(int(action))
        self._choices += 1
        return self._context(), reward, self._choices == CHOICES, False, {}

    def _context(self) -> np.ndarray:
        self._shown = self.np_random.normal(size=FEATURES).astype(np.float32)
        return self._shown

    def _payment(self, arm: int) -> float:
        return float(self._weights[arm] @ self._shown + 0.1 * self.np_random.normal())


gymnasium.register("my_app-v0", entry_point="my_app.environment:Bandit")
