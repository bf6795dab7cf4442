"""Environments of Gymnasium whose observations name a goal: a point in a plane that is moved to another one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NEAR = 0.25
STEPS = 6
GOAL = spaces.Box(-5, 5, (2,), np.float64)
MOVES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)]) / 2


class Silent(gymnasium.Env[Any, Any]):
    """It has no function that computes rewards. view: of the entry `observation`, numbers or an image.

    By default the goals are vectors; `goal` is another space of theirs.
    """

    def __init__(self, actions: str = "numbers", view: str = "numbers", goal: spaces.Space[Any] = GOAL) -> None:
        self.image = view == "image"
        seen = spaces.Box(0, 255, (8, 8), np.uint8) if self.image else spaces.Box(-5, 5, (3,), np.float32)
        self.observation_space = spaces.Dict(observation=seen, achieved_goal=goal, desired_goal=goal)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32) if actions == "numbers" else spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.point, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.point = np.clip(self.point + (MOVES[action] if np.ndim(action) == 0 else action / 2), -5, 5)
        near = bool(np.linalg.norm(self.point - self.goal) < NEAR)
        return self.observe(), float(near) - 1.0, self.ends and near, self.count == STEPS, {"is_success": near}

    ends = False

    def observe(self) -> Any:
        seen = np.full((8, 8), int(20 * self.point[0]) % 256, np.uint8) if self.image else np.append(self.point, self.count)
        seen = seen.astype(self.observation_space["observation"].dtype)
        goals = (each.astype(self.observation_space["desired_goal"].dtype) for each in (self.point, self.goal))
        return dict(zip(("observation", "achieved_goal", "desired_goal"), (seen, *goals), strict=True))


class Goals(Silent):
    """Its function takes many goals at once."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        assert achieved_goal.dtype == np.float64
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) < NEAR) - 1.0


class Ending(Goals):
    """A goal ends the episode. Its functions take one goal at once."""

    ends = True

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return 0.0 if np.linalg.norm(achieved_goal - desired_goal) < NEAR else -1.0

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return bool(np.linalg.norm(achieved_goal - desired_goal) < NEAR)


class Failing(Goals):
    """Its function always fails."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        raise KeyError("weight")


def reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    """A user's function of many goals."""
    return -np.linalg.norm(achieved - desired, axis=-1)


for _class in (Silent, Goals, Ending, Failing):
    gymnasium.register(f"Test{_class.__name__}-v0", _class)
