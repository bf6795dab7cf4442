"""Locks: several choices at once, all of which must be right.

Each observation names the right value of every component. A step opens the lock and gives reward 1 if all values are right.
A single wrong value gives nothing. The episode ends after 8 locks.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import MultiDiscrete
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

COUNTS = (3, 4, 2)
LOCKS = 8
PLACES = np.repeat(np.arange(len(COUNTS)), COUNTS)  # component of each place of an observation
VALUES = np.concatenate([np.arange(count) for count in COUNTS])  # its value


class Locks(Toy):
    """N rows of locks. An observation is the right value of each component, one-hot, float32 `[9]`."""

    env_id = "Locks-v0"
    frame_shape = (sum(COUNTS),)
    frame_dtype = "float32"
    action = MultiDiscrete(COUNTS)

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._right = np.zeros((num_envs, LOCKS + 1, len(COUNTS)), dtype=np.int64)

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._right[index] = generator.integers(COUNTS, size=(LOCKS + 1, len(COUNTS)))

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = self._right[np.arange(self.num_envs), (self.steps - 1) % LOCKS]
        return (actions == right).all(axis=1).astype(np.float32), self.steps == LOCKS

    def frames(self) -> np.ndarray:
        right = self._right[np.arange(self.num_envs), self.steps]
        frames: np.ndarray = (right[:, PLACES] == VALUES).astype(np.float32)
        return frames

    def board(self) -> np.ndarray:
        board = np.zeros((len(COUNTS), max(COUNTS)), dtype=np.uint8)
        board[PLACES, VALUES] = 255 * self.frames()[0]
        return board
