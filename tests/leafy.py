"""A toy family for tests: guess the number that the observation shows. `Vector-v0` gives vectors, `Leafy-v0` several leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from wrappers.episodes import EpisodeStatistics, check_seed
from wrappers.spaces import ACTION_MASK, Discrete, Leaf, Packing
from wrappers.spec import EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv

VECTOR, LEAFY = "Vector-v0", "Leafy-v0"
ACTIONS, STEPS = 3, 4
LEAVES = (Leaf(ACTION_MASK, (ACTIONS,), "uint8"), Leaf("vector", (2,), "float32"), Leaf("image", (6, 7), "uint8"))
PACKING = Packing(LEAVES)


def known_ids() -> Mapping[str, str]:
    return {VECTOR: VECTOR, LEAFY: LEAFY}


def matches(env_id: str) -> bool:
    return env_id in (VECTOR, LEAFY)


def make_spec(config: EnvConfig) -> EnvSpec:
    if config.env == VECTOR:
        return EnvSpec(VECTOR, (2,), "float32", config.frames_stacked, Discrete(ACTIONS))
    return EnvSpec(LEAFY, (PACKING.size,), "uint8", config.frames_stacked, Discrete(ACTIONS), leaves=LEAVES)


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    return Guess(config, num_envs)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    return Guess(config, 1)


def describe(config: EnvConfig) -> EnvDescription:
    return EnvDescription(config)


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    return []


class Guess(VectorEnv):
    """N guessers. The right guess gives 5, another one -5, and after four guesses the episode ends.

    The number stands far from zero in feature 0 of the vector, and as the bright column of the image. Actions after the number
    are illegal, and an illegal action is an error.
    """

    def __init__(self, config: EnvConfig, num_envs: int) -> None:
        self.spec, self.num_envs = make_spec(config), num_envs
        self.noise = 1e-3  # standard deviation of feature 1 of the vector
        self._statistics = EpisodeStatistics(num_envs)
        self._generator = np.random.default_rng(0)
        self._steps, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self._number = np.zeros(num_envs, int)
        self._stack = np.zeros((num_envs, *self.spec.observation_shape), self.spec.frame_dtype)

    def reset(self, seed: int) -> np.ndarray:
        self._generator = np.random.default_rng(check_seed(seed, self.num_envs))
        self._statistics.clear()
        self._steps[:], self._ended[:] = 0, False
        return self._observe(np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> Step:
        actions = self.spec.action.check(actions, self.num_envs)
        reset = self._ended
        assert not (self.spec.leaves and (actions > self._number)[~reset].any()), "an illegal action"
        rewards = np.where(reset, 0.0, np.where(actions == self._number, 5.0, -5.0)).astype(np.float32)
        self._steps = np.where(reset, 0, self._steps + 1)
        terminated = self._steps == STEPS
        self._ended = terminated
        statistics = self._statistics.update(rewards, reset, terminated)
        return Step(self._observe(reset), rewards, terminated, np.zeros_like(reset), reset, ~reset, *statistics)

    def _observe(self, first: np.ndarray) -> np.ndarray:
        self._number = self._generator.integers(ACTIONS, size=self.num_envs)
        self._stack[first] = 0
        self._stack[:, :-1] = self._stack[:, 1:].copy()
        self._stack[:, -1] = self._frame()
        return self._stack.copy()

    def _frame(self) -> np.ndarray:
        noise = self.noise * self._generator.normal(size=self.num_envs)
        vector = np.stack([1000.0 + 0.5 * self._number, noise], 1).astype(np.float32)
        if not self.spec.leaves:
            return vector
        mask = (np.arange(ACTIONS) <= self._number[:, None]).astype(np.uint8)
        image = np.zeros((self.num_envs, 6, 7), np.uint8)
        image[np.arange(self.num_envs), :, self._number] = 200
        return PACKING.pack({ACTION_MASK: mask, "vector": vector, "image": image})
