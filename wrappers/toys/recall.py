"""Recall: a game that no policy without memory can win, for tests of recurrent networks.

The first observation shows one of four cues. Three blank observations follow, then the query, which is the same for every cue.
The action at the query is the answer, and the episode ends with it: the reward is 1 if it is the cue's number, otherwise -1.
Actions before the query have no effect. A policy without memory answers one query in four correctly, mean return -0.5; with
memory every episode can have return 1.

A stack of more than four frames would show the cue together with the query. With at most four, memory must be in the network.
"""

from __future__ import annotations

import numpy as np

from wrappers.spaces import Discrete
from wrappers.spec import EnvConfig
from wrappers.toys.base import Toy

CUES = 4
BLANKS = 3
QUERY = BLANKS + 1  # steps from the cue to the query
BRIGHT = 255


class Recall(Toy):
    """N games of Recall. A frame has a place for each cue and one for the query, uint8 `[5]`."""

    env_id = "Recall-v0"
    frame_shape = (CUES + 1,)
    frame_dtype = "uint8"
    action = Discrete(CUES)

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        super().__init__(config, num_envs, render_mode)
        self._cues = np.zeros(num_envs, dtype=np.int64)

    def begin(self, index: int, generator: np.random.Generator) -> None:
        self._cues[index] = generator.integers(CUES)

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answered = self.steps == QUERY + 1
        return np.where(answered, np.where(actions == self._cues, 1.0, -1.0), 0.0), answered

    def frames(self) -> np.ndarray:
        frames = np.zeros((self.num_envs, *self.frame_shape), dtype=np.uint8)
        shown = np.flatnonzero(self.steps == 0)
        frames[shown, self._cues[shown]] = BRIGHT
        frames[self.steps == QUERY, CUES] = BRIGHT
        return frames

    def board(self) -> np.ndarray:
        return self.frames()[:1]
