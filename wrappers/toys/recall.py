"""Recall: a game that no policy without memory can win, for tests of recurrent networks.

The first observation shows one of four cues. Three blank observations follow, then the query, which is the same for every cue.
The action at the query is the answer, and the episode ends with it: the reward is 1 if it is the cue's number, otherwise -1.
Actions before the query have no effect. A policy without memory answers one query in four, mean return -0.5; with memory every
episode can have return 1.

A stack of more than four frames would show the cue beside the query, so the memory must be in the network with fewer.
"""

from __future__ import annotations

import numpy as np

from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spaces import Discrete
from wrappers.spec import EnvConfig, EnvSpec, Step, VectorEnv

RECALL = "Recall-v0"
CUES = 4
BLANKS = 3
QUERY = BLANKS + 1  # steps from the cue to the query
BRIGHT = 255


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of Recall. A frame has a place for each cue and one for the query."""
    return EnvSpec(
        env=config.env,
        frame_shape=(CUES + 1,),
        frame_dtype="uint8",
        frames_stacked=config.frames_stacked,
        action=Discrete(CUES),
    )


class Recall(VectorEnv):
    """N games of Recall that are stepped together."""

    def __init__(self, config: EnvConfig, num_envs: int) -> None:
        self.spec = make_spec(config)
        self.num_envs = num_envs
        self._max_episode_steps = config.max_episode_frames
        self._statistics = EpisodeStatistics(num_envs)
        self._generators: list[np.random.Generator] = []
        self._cues = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)  # since the start of the episode
        self._ended = np.zeros(num_envs, dtype=bool)
        self._observations = np.zeros((num_envs, *self.spec.observation_shape), dtype=np.uint8)

    def reset(self, seed: int) -> np.ndarray:
        seed = check_seed(seed, self.num_envs)
        self._generators = [np.random.default_rng(seed + index) for index in range(self.num_envs)]
        self._statistics.clear()
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._start_episodes(np.ones(self.num_envs, dtype=bool))
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        if not self._generators:
            raise RuntimeError("wanted a reset before the first step, got a step")
        actions = self.spec.action.check(actions, self.num_envs)
        reset = self._ended  # next-step autoreset: these games ignore their actions and start an episode
        terminated = (self._steps == QUERY) & ~reset
        rewards = np.where(terminated, np.where(actions == self._cues, 1.0, -1.0), 0.0).astype(np.float32)
        self._steps += 1
        if reset.any():
            self._start_episodes(reset)
        truncated = (self._steps >= self._max_episode_steps) & ~terminated & ~reset
        self._ended = terminated | truncated
        statistics = self._statistics.update(rewards, reset, self._ended)
        return Step(self._observe(), rewards, terminated, truncated, reset, ~reset, *statistics)

    def _start_episodes(self, where: np.ndarray) -> None:
        """Start an episode in every game where `where`, bool `[N]`, is true. Every game has its own generator."""
        self._steps[where] = 0
        self._observations[where] = 0
        for index in np.flatnonzero(where):
            self._cues[index] = self._generators[index].integers(CUES)

    def _observe(self) -> np.ndarray:
        """Push the newest frame into the stacks and return a copy of them, `[N, S, CUES + 1]`."""
        self._observations[:, :-1] = self._observations[:, 1:].copy()
        newest = self._observations[:, -1]
        newest[:] = 0
        shown = np.flatnonzero(self._steps == 0)
        newest[shown, self._cues[shown]] = BRIGHT
        newest[self._steps == QUERY, CUES] = BRIGHT
        return self._observations.copy()
