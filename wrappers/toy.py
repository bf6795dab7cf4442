"""The toy family: games that are learned within a minute, for tests and demonstrations. This module holds Catch.

A ball starts in a random column of a 10 x 5 board and falls one row a step. The paddle in the bottom row moves left, stays
or moves right. The episode ends when the ball reaches the bottom row: the reward is 1 if the paddle is there, otherwise -1.
Every ball can be caught, so an optimal policy has return 1 in every episode.

Catch reads only `frames_stacked` and `max_episode_frames` of `EnvConfig`; one step is one frame. The board has a fixed
size, and the other settings belong to Atari.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import numpy as np

from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spaces import Discrete
from wrappers.spec import Display, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv
from wrappers.toys import recall

CATCH = "Catch-v0"
ROWS = 10
COLUMNS = 5
EPISODE_STEPS = ROWS - 1
ACTION_MEANINGS = ("LEFT", "STAY", "RIGHT")
RENDER_SCALE = 16  # screen pixels along one side of a board cell
SHOWN_SECONDS = 0.1  # for which "human" rendering shows one step


def known_ids() -> Mapping[str, str]:
    """All ids of the family, each mapped to itself."""
    return {CATCH: CATCH, recall.RECALL: recall.RECALL}


def matches(env_id: str) -> bool:
    """Return whether `env_id` names a toy environment."""
    return env_id in (CATCH, recall.RECALL)


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of the toy that `config` names."""
    if config.env == recall.RECALL:
        return recall.make_spec(config)
    return EnvSpec(
        env=config.env,
        frame_shape=(ROWS, COLUMNS),
        frame_dtype="uint8",
        frames_stacked=config.frames_stacked,
        action=Discrete(len(ACTION_MEANINGS), ACTION_MEANINGS),
    )


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return nothing: toys are the same everywhere."""
    return []


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Return N games. numpy steps them, so `num_threads` has no effect."""
    return recall.Recall(config, num_envs) if config.env == recall.RECALL else Catch(config, num_envs)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Return one game. Catch can be rendered; with "human" it is also printed at every step."""
    return recall.Recall(config, 1) if config.env == recall.RECALL else Catch(config, 1, render_mode)


def describe(config: EnvConfig) -> EnvDescription:
    """Toys as they are: every episode is a whole game."""
    return EnvDescription(config, display=Display(steps_per_second=1.0 / SHOWN_SECONDS))


class Catch(VectorEnv):
    """N boards of Catch that are stepped together."""

    def __init__(self, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> None:
        self.spec = make_spec(config)
        self.num_envs = num_envs
        self._render_mode = render_mode
        self._max_episode_steps = config.max_episode_frames
        self._statistics = EpisodeStatistics(num_envs)
        self._generators: list[np.random.Generator] = []
        self._ball = np.zeros(num_envs, dtype=np.int64)  # column
        self._paddle = np.zeros(num_envs, dtype=np.int64)  # column
        self._steps = np.zeros(num_envs, dtype=np.int64)  # since the start of the episode, which is also the ball's row
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
        reset = self._ended  # next-step autoreset: these boards ignore their actions and start an episode
        self._paddle = np.clip(self._paddle + actions - ACTION_MEANINGS.index("STAY"), 0, COLUMNS - 1)
        self._steps += 1
        if reset.any():
            self._start_episodes(reset)
        terminated = self._steps == EPISODE_STEPS
        truncated = (self._steps >= self._max_episode_steps) & ~terminated
        rewards = np.where(terminated, np.where(self._ball == self._paddle, 1.0, -1.0), 0.0).astype(np.float32)
        self._ended = terminated | truncated
        statistics = self._statistics.update(rewards, reset, self._ended)
        return Step(self._observe(), rewards, terminated, truncated, reset, ~reset, *statistics)

    def render(self) -> np.ndarray:
        if self._render_mode is None:
            return super().render()
        board = np.repeat(np.repeat(self._observations[0, -1], RENDER_SCALE, axis=0), RENDER_SCALE, axis=1)
        return np.repeat(board[:, :, None], 3, axis=2)

    def _start_episodes(self, where: np.ndarray) -> None:
        """Start an episode on every board where `where`, bool `[N]`, is true.

        Every board has its own generator, so that its episodes do not depend on the number of boards.
        """
        self._steps[where] = 0
        self._paddle[where] = COLUMNS // 2
        self._observations[where] = 0
        for index in np.flatnonzero(where):
            self._ball[index] = self._generators[index].integers(COLUMNS)

    def _observe(self) -> np.ndarray:
        """Push the newest frame into the stacks and return a copy of them, `[N, S, ROWS, COLUMNS]`."""
        self._observations[:, :-1] = self._observations[:, 1:].copy()
        newest = self._observations[:, -1]
        newest[:] = 0
        environments = np.arange(self.num_envs)
        newest[environments, self._steps, self._ball] = 255
        newest[environments, ROWS - 1, self._paddle] = 255
        if self._render_mode == "human":
            self._show(newest[0])
        return self._observations.copy()

    def _show(self, board: np.ndarray) -> None:
        """Print a board, `[ROWS, COLUMNS]`, as text."""
        print("\n".join("|" + "".join("#" if cell else " " for cell in row) + "|" for row in board) + "\n", flush=True)
        time.sleep(SHOWN_SECONDS)
