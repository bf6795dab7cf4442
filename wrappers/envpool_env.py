"""The family of EnvPool's environments, `envpool:Id`: C++ environments that step faster than Gymnasium's own.

EnvPool (Weng et al. 2022, arXiv:2206.10558) is an optional package. Its autoreset is next-step, as ours. It takes seeds when it
makes its environments, so `reset` makes them anew. Environment i has the seed `seed + i` and depends on no other environment.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from wrappers.drawing import load_egl, rendering_variables
from wrappers.episodes import check_seed
from wrappers.errors import import_failed, in_words
from wrappers.facts import Facts, probe
from wrappers.gymnasium_env import (
    USUAL_PACE,
    check_first_step,
    description_of,
    render_once,
    translate,
    version_of,
)
from wrappers.gymnasium_vector import NativeVector, picture_of
from wrappers.spec import EnvConfig, EnvDescription, EnvSpec, VectorEnv, parse_env_args

NAME = "wrappers.envpool_env"
PREFIX = "envpool:"
FIRST_SEED = 1


def known_ids() -> Mapping[str, str]:
    """Nothing: a list of all ids needs the package, whose import takes a second."""
    return {}


def matches(env_id: str) -> bool:
    """Return whether `env_id` begins with `envpool:`."""
    return env_id.startswith(PREFIX)


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of an environment, as a child process found it. Raises ValueError if it cannot be made."""
    return probe(NAME, config).spec


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return a line that names the other implementation, and those on how observations are read."""
    other = f"{config.env}: EnvPool's own implementation; scores may differ from those of Gymnasium's environment of that id"
    return [other, *probe(NAME, config).lines]


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Return native environments. Their results do not depend on the number of threads. Raises ValueError."""
    return EnvPoolVector(config, num_envs, num_threads)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Return one environment that can be rendered. Raises ValueError if it cannot."""
    if render_mode is not None:
        os.environ.update(probe(NAME, config, render=True).variables)
    return EnvPoolVector(config, 1, 1, render_mode)


def describe(config: EnvConfig) -> EnvDescription:
    """The description of an environment. Evaluation uses the same one: each of its episodes is a whole one."""
    return description_of(config, probe(NAME, config))


def try_out(config: EnvConfig, *, render: bool) -> Facts:
    """Make the environment, reset it and step it once; with `render`, render it too. Raises ValueError with one line."""
    started = time.perf_counter()
    variables = rendering_variables() if render else {}
    os.environ.update(variables)
    env = EnvPoolVector(config, 1, 1, "rgb_array" if render else None)
    check_first_step(env, config.env)
    if render:
        render_once(env, env.metadata, config.env)
    return Facts(
        spec=env.spec,
        max_episode_steps=env.max_episode_steps,
        version=version_of("envpool"),
        pictures_per_second=float(env.metadata.get("render_fps") or USUAL_PACE),
        start_seconds=time.perf_counter() - started,
        variables=variables,
        lines=env.lines(),
    )


class EnvPoolVector(NativeVector):
    """N environments of EnvPool."""

    ignored_infos = ("env_id", "elapsed_step", "lives", "reward", "terminated")

    def __init__(self, config: EnvConfig, num_envs: int, num_threads: int, render_mode: str | None = None) -> None:
        self._config = config
        self._threads = num_threads
        self._render_mode = render_mode
        # Only a reset tells whether info holds an action mask.
        pool, (_, info) = self._begin_pool(FIRST_SEED, num_envs)
        first = {name: value[0] for name, value in info.items() if isinstance(value, np.ndarray) and value.ndim}
        self.metadata: Mapping[str, Any] = pool.metadata
        self.max_episode_steps = int(getattr(pool.spec.config, "max_episode_steps", 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the precision of bounds
            translation = translate(config, pool.observation_space, pool.action_space, first)
        super().__init__(pool, translation, num_envs)

    def reset(self, seed: int) -> np.ndarray:
        self._vector.close()
        self._vector, (observations, info) = self._begin_pool(check_seed(seed, self.num_envs), self.num_envs)
        self._buffer.put(slice(None), observations, info)
        return self._begin()

    def render(self) -> np.ndarray:
        return super().render() if self._render_mode is None else picture_of(self._vector.render(), self.spec.env)

    def _begin_pool(self, seed: int, num_envs: int) -> tuple[Any, Any]:
        """New environments, and the result of their first reset. seed: of environment 0. Raises ValueError with one line."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the precision of bounds: the first reset makes the spaces again
            pool = self._make_pool(seed, num_envs)
            return pool, pool.reset()

    def _make_pool(self, seed: int, num_envs: int) -> Any:
        """New environments. seed: of environment 0. Raises ValueError with one line."""
        name = self._config.env.removeprefix(PREFIX)
        arguments = parse_env_args(self._config.env_args)
        if self._config.max_episode_steps:
            arguments["max_episode_steps"] = self._config.max_episode_steps
        if self._render_mode is not None:
            arguments["render_mode"] = self._render_mode
        load_egl()  # before EnvPool's libraries bind to the EGL of the package, which draws nothing
        try:
            import envpool
        except ImportError as error:
            raise ValueError(import_failed("the package envpool", error)) from error
        seeds = list(range(seed, seed + num_envs))
        try:
            return envpool.make_gymnasium(name, num_envs=num_envs, num_threads=self._threads, env_seed=seeds, **arguments)
        except Exception as error:  # EnvPool raises AssertionError, TypeError and RuntimeError for what it does not know
            raise ValueError(f"env: wanted {self._config.env} to be made, got {in_words(error)}") from error
