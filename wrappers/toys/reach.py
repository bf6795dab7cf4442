"""Reach: move a point to a target with real numbers between bounds that are not [-1, 1].

One step moves the point by the action, which is from -2 to 3 along the first axis and from -4 to 1 along the second. The
target is always within one step, since walls stop the point. The reward is 1 and the episode ends if the point is within 0.5
of the target, otherwise it is minus the distance, at most 3. An episode is truncated after 8 steps. A policy whose actions are
not rescaled to the bounds needs several steps for most targets, which costs more than the hit gives.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import Box
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

LOW, HIGH = (-2.0, -4.0), (3.0, 1.0)
RADIUS = 0.5
LARGEST_COST = 3.0
BOARD_SIDE = 21  # cells; a cell is half a unit


class Reach(Toy):
    """N planes with a point and a target. An observation is the way from the point to the target, float32 `[2]`."""

    env_id = "Reach-v0"
    frame_shape = (2,)
    frame_dtype = "float32"
    action = Box(LOW, HIGH)
    time_limit = 8

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._way = np.zeros((num_envs, 2), dtype=np.float32)

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._way[index] = generator.uniform(LOW, HIGH)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._way = np.clip(self._way - actions, LOW, HIGH).astype(np.float32)
        distance = np.linalg.norm(self._way, axis=1)
        hit = distance <= RADIUS
        return np.where(hit, 1.0, -np.minimum(distance, LARGEST_COST)), hit

    def frames(self) -> np.ndarray:
        return self._way

    def board(self) -> np.ndarray:
        board = np.zeros((BOARD_SIDE, BOARD_SIDE), dtype=np.uint8)
        middle = BOARD_SIDE // 2
        column, row = np.clip(np.round(2 * self._way[0]).astype(int) + middle, 0, BOARD_SIDE - 1)
        board[middle, middle] = 128  # the point
        board[row, column] = 255  # the target
        return board
