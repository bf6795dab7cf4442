"""Catch, a game that is learned within a minute.

A ball starts in a random column of a 10 x 5 board and falls one row a step. The paddle in the bottom row moves left, stays
or moves right. The episode ends when the ball reaches the bottom row: the reward is 1 if the paddle is there, otherwise -1.
Every ball can be caught, so an optimal policy has return 1 in every episode.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import Discrete
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

ROWS = 10
COLUMNS = 5
EPISODE_STEPS = ROWS - 1
ACTION_MEANINGS = ("LEFT", "STAY", "RIGHT")


class Catch(Toy):
    """N boards of Catch."""

    env_id = "Catch-v0"
    frame_shape = (ROWS, COLUMNS)
    frame_dtype = "uint8"
    action = Discrete(len(ACTION_MEANINGS), ACTION_MEANINGS)

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._ball = np.zeros(num_envs, dtype=np.int64)  # column; the row is the number of steps
        self._paddle = np.zeros(num_envs, dtype=np.int64)  # column

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._paddle[index] = COLUMNS // 2
        self._ball[index] = generator.integers(COLUMNS)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._paddle = np.clip(self._paddle + actions - ACTION_MEANINGS.index("STAY"), 0, COLUMNS - 1)
        terminated = self.steps == EPISODE_STEPS
        return np.where(terminated, np.where(self._ball == self._paddle, 1.0, -1.0), 0.0), terminated

    def frames(self) -> np.ndarray:
        frames = np.zeros((self.num_envs, ROWS, COLUMNS), dtype=np.uint8)
        environments = np.arange(self.num_envs)
        frames[environments, self.steps, self._ball] = 255
        frames[environments, ROWS - 1, self._paddle] = 255
        return frames

    def board(self) -> np.ndarray:
        board: np.ndarray = self.frames()[0]
        return board


class Avoid(Catch):
    """N boards of Avoid: as Catch to look at, but the paddle must not be where the ball is, and rewards are 100 times as large.

    One policy for both games needs to know which one it plays, and values of its own for each.
    """

    env_id = "Avoid-v0"

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards, terminated = super().move(actions)
        return -100.0 * rewards, terminated
