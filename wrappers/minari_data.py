"""The episodes of a Minari dataset, as an environment of the family `gymnasium` would have shown them.

Minari keeps what Gymnasium's environments returned. Here these observations, rewards and ends go through the same translation,
stacks and autoresets as those of an environment that is played. Minari is an optional package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from wrappers.gymnasium_env import translate
from wrappers.gymnasium_spaces import from_gymnasium
from wrappers.gymnasium_vector import GymnasiumLoop
from wrappers.previous import PreviousEnv
from wrappers.spec import EnvConfig, VectorEnv


def load_dataset(name: str) -> Any:
    """The local Minari dataset of this name. Raises ValueError in one line if there is none, or no Minari."""
    try:
        import minari
    except ImportError as error:
        raise ValueError(
            f"recording: wanted the package minari for minari:{name}, got {error}; pip install 'minari[hdf5]'"
        ) from None
    try:
        return minari.load_dataset(name)
    except (OSError, ValueError, KeyError) as error:
        got = " ".join(str(error).split())
        line = f"recording: wanted a Minari dataset on this machine, got {name}: {got}; minari download {name}"
        raise ValueError(line) from None


class Episodes(gymnasium.Env[Any, Any]):
    """Shows the episodes of a dataset one after the other, whatever the actions.

    actions: those of the current episode, as `wrappers.spaces` has them, `[n, *shape]`. left: episodes after it.
    """

    def __init__(self, dataset: Any) -> None:
        self.observation_space, self.action_space = dataset.observation_space, dataset.action_space
        self._episodes: Iterator[Any] = dataset.iterate_episodes()
        self.left = int(dataset.total_episodes)
        self.actions: np.ndarray = np.zeros(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = next(self._episodes), 0
        self.left -= 1
        self.actions = from_gymnasium(self.action_space, self._episode.actions)
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        episode, step = self._episode, self._step
        self._step += 1
        terminated, truncated = bool(episode.terminations[step]), bool(episode.truncations[step])
        observation, info = self._shown()
        # An episode whose last step neither terminates nor is truncated was cut there.
        truncated |= self._step == len(self.actions) and not terminated
        return observation, float(episode.rewards[step]), terminated, truncated, info

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        infos = self._episode.infos or {}
        info = {name: values[self._step] for name, values in infos.items() if isinstance(values, np.ndarray | list)}
        return _at(self._episode.observations, self._step, self.observation_space), info


def _at(values: Any, step: int, space: spaces.Space[Any]) -> Any:
    """The observation of one step out of those of an episode, which Minari keeps by the entries of its space."""
    if isinstance(space, spaces.Dict):
        return {name: _at(values[name], step, each) for name, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_at(part, step, each) for part, each in zip(values, space.spaces, strict=True))
    return values[step]


def replayed(dataset: Any, config: EnvConfig) -> tuple[VectorEnv, Episodes]:
    """One environment that shows the episodes of a dataset, and what lies within it. Raises ValueError for unknown spaces."""
    _, info = Episodes(dataset).reset()
    translation = translate(config, dataset.observation_space, dataset.action_space, info)
    episodes = Episodes(dataset)
    env: VectorEnv = GymnasiumLoop([episodes], translation)
    return (PreviousEnv(env) if config.core_inputs else env), episodes
