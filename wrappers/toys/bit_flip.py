"""Bit-flip: reach a random pattern of bits by flipping one bit a step.

Source: Andrychowicz et al. 2017 (arXiv:1707.01495), section 3.1. The reward is -1 until the pattern is reached, which ends the
episode with reward 0. There are as many steps as bits. With 15 bits there are 32,768 patterns, so exploration at random hardly
ever reaches the wanted one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from wrappers.spaces import Discrete, Goals
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy


class BitFlip(Toy):
    """N patterns. A frame is the achieved goal, which is the state, and the desired one, float32 `[2 * bits]` of 0 and 1."""

    bits: ClassVar[int]
    frame_dtype = "float32"

    def __init_subclass__(cls) -> None:
        cls.env_id = f"BitFlip{cls.bits}-v0"
        cls.frame_shape = (2 * cls.bits,)
        cls.action = Discrete(cls.bits)
        cls.time_limit = cls.bits
        functions = ("compute_reward", "compute_terminated")
        cls.goals = Goals("", (0, cls.bits), (cls.bits, 2 * cls.bits), (cls.bits,), "float32", functions)

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._goals = np.zeros((num_envs, 2, self.bits), dtype=np.float32)  # achieved and desired

    @staticmethod
    def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """Rewards `[N]` of steps after which these goals `[N, bits]` are achieved."""
        return -np.asarray(np.any(achieved != desired, axis=-1), np.float32)

    @staticmethod
    def compute_terminated(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        """Whether the episode ends there, bool `[N]`."""
        return np.asarray(np.all(achieved == desired, axis=-1))

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._goals[index] = generator.integers(2, size=(2, self.bits))

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        environments = np.arange(self.num_envs)
        self._goals[environments, 0, actions] = 1 - self._goals[environments, 0, actions]
        achieved, desired = self._goals[:, 0], self._goals[:, 1]
        return self.compute_reward(achieved, desired, {}), self.compute_terminated(achieved, desired, {})

    def frames(self) -> np.ndarray:
        return self._goals.reshape(self.num_envs, -1)

    def board(self) -> np.ndarray:
        board: np.ndarray = (255 * self._goals[0]).astype(np.uint8)
        return board


class BitFlip8(BitFlip):
    """Eight bits, for tests."""

    bits = 8


class BitFlip15(BitFlip):
    """Fifteen bits, of which exploration alone learns nothing."""

    bits = 15
