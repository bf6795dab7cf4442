"""The base of the toys: seeds, episodes, the time limit, statistics, stacks of frames, and pictures for a person.

A toy is one file with a subclass of `Toy`, and one line in the table of `wrappers/toy.py`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spaces import ActionSpace, Box, Goals, Leaf
from wrappers.spec import EnvConfig, EnvSpec, Step, VectorEnv

RENDER_SCALE = 16  # screen pixels along one side of a board cell
SHOWN_SECONDS = 0.1  # for which "human" rendering shows one step


class Toy(VectorEnv):
    """N environments of one toy that are stepped together. numpy steps them, so that they need no threads.

    A toy reads only `frames_stacked` and `max_episode_frames` of `EnvConfig`; one step is one frame.

    env_id: its id. frame_shape, frame_dtype, leaves, action, goals: as in `EnvSpec`. time_limit: steps after which an episode
    is truncated, if `max_episode_frames` does not truncate it earlier.
    """

    env_id: ClassVar[str]
    frame_shape: ClassVar[tuple[int, ...]]
    frame_dtype: ClassVar[str]
    action: ClassVar[ActionSpace]
    leaves: ClassVar[tuple[Leaf, ...]] = ()
    goals: ClassVar[Goals | None] = None
    time_limit: ClassVar[float] = float("inf")

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        self.spec = self.make_spec(config)
        self.num_envs = num_envs
        self.steps = np.zeros(num_envs, dtype=np.int64)  # since the start of the episode
        self._render_mode = render_mode
        self._max_episode_steps = min(config.max_episode_frames, self.time_limit)
        self._statistics = EpisodeStatistics(num_envs)
        self._generators: list[np.random.Generator] = []
        self._ended = np.zeros(num_envs, dtype=bool)
        self._observations = np.zeros((num_envs, *self.spec.observation_shape), dtype=self.frame_dtype)

    @classmethod
    def make_spec(cls, config: EnvConfig) -> EnvSpec:
        """The spec of the toy."""
        return EnvSpec(
            env=config.env,
            frame_shape=cls.frame_shape,
            frame_dtype=cls.frame_dtype,
            frames_stacked=config.frames_stacked,
            action=cls.action,
            leaves=cls.leaves,
            goals=cls.goals,
        )

    @abstractmethod
    def begin(self, index: int, generator: np.random.Generator) -> None:
        """Start an episode of environment `index`.

        generator: the environment's own, so that its episodes do not depend on the number of environments.
        """

    @abstractmethod
    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Advance every environment. Results of an environment whose episode has ended are not used.

        actions: `[N, *action_shape]`, real numbers within the environment's bounds. Returns rewards, floating-point `[N]`, and
        bool `[N]`, whether the episode terminates. `steps` counts this step already.
        """

    @abstractmethod
    def frames(self) -> np.ndarray:
        """The newest frames, `[N, *frame_shape]`."""

    @abstractmethod
    def board(self) -> np.ndarray:
        """A picture of environment 0 with one pixel a cell, uint8 `[H, W]`."""

    def reset(self, seed: int) -> np.ndarray:
        seed = check_seed(seed, self.num_envs)
        self._generators = [np.random.default_rng(seed + index) for index in range(self.num_envs)]
        self._statistics.clear()
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._begin_episodes(np.ones(self.num_envs, dtype=bool))
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        if not self._generators:
            raise RuntimeError("wanted a reset before the first step, got a step")
        actions = self.action.check(actions, self.num_envs)
        if isinstance(self.action, Box):
            actions = self.action.to_environment(actions)
        reset = self._ended  # next-step autoreset: these environments ignore their actions and start an episode
        # Environments that reset move too, since numpy moves all at once; what they return is dropped below.
        self.steps += 1
        rewards, terminated = self.move(actions)
        rewards, terminated = np.where(reset, 0.0, rewards).astype(np.float32), terminated & ~reset
        if reset.any():
            self._begin_episodes(reset)
        truncated = (self.steps >= self._max_episode_steps) & ~terminated & ~reset
        self._ended = terminated | truncated
        statistics = self._statistics.update(rewards, reset, self._ended)
        return Step(self._observe(), rewards, terminated, truncated, reset, ~reset, *statistics)

    def goal_function(self, name: str) -> Callable[..., Any] | None:
        return getattr(self, name, None)

    def render(self) -> np.ndarray:
        if self._render_mode is None:
            return super().render()
        board = np.repeat(np.repeat(self.board(), RENDER_SCALE, axis=0), RENDER_SCALE, axis=1)
        return np.repeat(board[:, :, None], 3, axis=2)

    def _begin_episodes(self, where: np.ndarray) -> None:
        """Start an episode in every environment where `where`, bool `[N]`, is true."""
        self.steps[where] = 0
        self._observations[where] = 0
        for index in np.flatnonzero(where):
            self.begin(int(index), self._generators[index])

    def _observe(self) -> np.ndarray:
        """Push the newest frames into the stacks and return a copy of them, `[N, S, *frame_shape]`."""
        self._observations[:, :-1] = self._observations[:, 1:].copy()
        self._observations[:, -1] = self.frames()
        if self._render_mode == "human":
            self._show(self.board())
        return self._observations.copy()

    def _show(self, board: np.ndarray) -> None:
        """Print a board, `[H, W]`, as text."""
        print("\n".join("|" + "".join("#" if cell else " " for cell in row) + "|" for row in board) + "\n", flush=True)
        time.sleep(SHOWN_SECONDS)
