"""An environment of Gymnasium: an agent walks in a corridor to a goal, which is left or right of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 8
"""Cells on either side of the middle."""
TIME_LIMIT = 40
"""Steps after which Gymnasium truncates an episode."""


class Corridor(gymnasium.Env[np.ndarray, np.int64]):
    """The observation is the place of the agent and that of the goal, from -1 to 1. Action 0 walks left, action 1 right."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._place = self._goal = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        self._goal = LENGTH * (1 if self.np_random.random() < 0.5 else -1)
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._place = int(np.clip(self._place + (1 if action else -1), -LENGTH, LENGTH))
        arrived = self._place == self._goal
        return self._observe(), 1.0 if arrived else -0.01, arrived, False, {"is_success": arrived}

    def _observe(self) -> np.ndarray:
        return np.array([self._place, self._goal], np.float32) / LENGTH


gymnasium.register("my_app-v0", entry_point="my_app.environment:Corridor", max_episode_steps=TIME_LIMIT)
