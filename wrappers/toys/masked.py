"""Masked: the legal actions change at each step, and an illegal action ends the episode with reward -1.

The observation shows a prize for each action and the mask of the legal ones. The prizes alone do not say which actions are
legal. The legal action with the largest prize gives reward 1, another legal one nothing. The episode ends after 8 steps.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import ACTION_MASK, Discrete, Leaf, Packing
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

ACTIONS = 6
LEGAL = 2  # actions at each step
EPISODE_STEPS = 8
LEAVES = (Leaf("prizes", (ACTIONS,), "float32"), Leaf(ACTION_MASK, (ACTIONS,), "uint8"))
PACKING = Packing(LEAVES)


class Masked(Toy):
    """N choices under a mask. A frame holds two leaves: prizes float32 `[6]`, and the action mask uint8 `[6]`."""

    env_id = "Masked-v0"
    frame_shape = (PACKING.size,)
    frame_dtype = "uint8"
    action = Discrete(ACTIONS)
    leaves = LEAVES

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._prizes = np.zeros((num_envs, EPISODE_STEPS + 1, ACTIONS), dtype=np.float32)
        self._legal = np.zeros((num_envs, EPISODE_STEPS + 1, ACTIONS), dtype=np.uint8)

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._prizes[index] = generator.random((EPISODE_STEPS + 1, ACTIONS))
        ranks = generator.random((EPISODE_STEPS + 1, ACTIONS)).argsort(axis=1)
        self._legal[index] = ranks < LEGAL

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        environments, before = np.arange(self.num_envs), (self.steps - 1) % EPISODE_STEPS
        legal = self._legal[environments, before]
        best = np.where(legal, self._prizes[environments, before], -1.0).argmax(axis=1)
        illegal = legal[environments, actions] == 0
        return np.where(illegal, -1.0, (actions == best).astype(np.float32)), illegal | (self.steps == EPISODE_STEPS)

    def frames(self) -> np.ndarray:
        now = np.arange(self.num_envs), np.minimum(self.steps, EPISODE_STEPS)
        return PACKING.pack({"prizes": self._prizes[now], ACTION_MASK: self._legal[now]})

    def board(self) -> np.ndarray:
        shown = self._prizes[0, self.steps[0]] * self._legal[0, self.steps[0]]
        board: np.ndarray = (255 * shown[None]).astype(np.uint8)
        return board
