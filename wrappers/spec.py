"""Types that all environment families share: the description of an environment, the result of a step, the interface.

Autoreset is *next-step* everywhere, which is the default of Gymnasium's vector environments. The step that ends an episode
returns the final observation of that episode. The next call of `step` ignores the environment's action, resets it and
returns the first observation of the next episode with reward 0. `Step.reset` and `Step.action_used` mark that step, so
that the learner leaves it out of the loss. A truncated step is followed by the row of its final observation, whose value
the learner bootstraps from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

_INT32_MAX = 2**31 - 1  # the emulator counts in 32-bit integers


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how its observations are made. Units: frames are emulator frames, steps are actions."""

    env: str = "PongNoFrameskip-v4"
    frame_height: int = 84
    frame_width: int = 84
    frames_stacked: int = 4
    skipped_frames: int = 4
    noop_threshold: int = 30
    grayscaling_frames: bool = True
    episodic_life: bool = True
    fire_reset: bool = True
    sticky_actions: float = 0.0
    full_action_space: bool = False
    max_episode_frames: int = 108_000

    def __post_init__(self) -> None:
        if not isinstance(self.env, str) or not self.env:
            raise ValueError(f"env: wanted the id of an environment, got {self.env!r}")
        at_least = {"frame_height": 1, "frame_width": 1, "frames_stacked": 1, "skipped_frames": 1, "noop_threshold": 0}
        for name, smallest in {**at_least, "max_episode_frames": 1}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= _INT32_MAX:
                raise ValueError(f"{name}: wanted an integer from {smallest} to {_INT32_MAX}, got {value!r}")
        for name in ("grayscaling_frames", "episodic_life", "fire_reset", "full_action_space"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: wanted True or False, got {getattr(self, name)!r}")
        sticky = self.sticky_actions
        if isinstance(sticky, bool) or not isinstance(sticky, int | float) or not 0.0 <= sticky <= 1.0:
            raise ValueError(f"sticky_actions: wanted a probability from 0 to 1, got {sticky!r}")


@dataclass(frozen=True)
class EnvSpec:
    """Shapes and counts of one environment, which are known before any process starts.

    frame_shape: shape of ONE frame, `[H, W]` or `[H, W, C]`. An observation is `[frames_stacked, *frame_shape]`.
    frames_per_step: emulator frames that one step advances; 1 for environments without an emulator.
    """

    env: str
    frame_shape: tuple[int, ...]
    frame_dtype: str
    frames_stacked: int
    action_count: int
    action_meanings: tuple[str, ...]
    frames_per_step: int

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.frames_stacked, *self.frame_shape)


@dataclass(frozen=True)
class Display:
    """How a person is shown an environment.

    steps_per_second: the pace. aspect: width of the picture over its height, None for square pixels.
    enlargement: factor of the height, None for a picture of a usual height.
    """

    steps_per_second: float = 10.0
    aspect: float | None = None
    enlargement: int | None = None


@dataclass(frozen=True)
class EnvDescription:
    """What evaluation and export need to know of an environment beyond its `EnvSpec`.

    evaluation_config: the environment in which an agent is evaluated; its episodes are whole games.
    protocols: published evaluation protocols of the family, name -> the settings that each prescribes.
    protocol_settings: settings of the family on which a score depends, as plain data for JSON.
    protocol_text: the same settings as phrases for a printed line.
    preprocessing: the steps that make a frame from the raw environment, in order.
    game_name: name in tables of published scores, the same for every id of one game; None if there are none.
    """

    evaluation_config: EnvConfig
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    protocol_settings: Mapping[str, Any] = field(default_factory=dict)
    protocol_text: tuple[str, ...] = ()
    preprocessing: tuple[str, ...] = ()
    display: Display = field(default_factory=Display)
    game_name: str | None = None


class Step(NamedTuple):
    """The result of one `step` of N environments. Every array has N rows and may be reused by the next call.

    observations: `[N, frames_stacked, *frame_shape]` in the spec's dtype, newest frame last. Frames before an episode's
        first one are zeros.
    rewards: float32 `[N]`, raw.
    terminated: bool `[N]`, as the learner sees it: with `episodic_life` also true where a life was lost.
    truncated: bool `[N]`, whether a time limit cut the episode.
    reset: bool `[N]`, whether this step was an autoreset. `observations` then holds an episode's first observation.
    action_used: bool `[N]`, false where the environment did not take the given action: at an autoreset, and where FIRE
        starts the next life.
    episode_return: float32 `[N]`, raw return of the whole episode that ended at this step, otherwise NaN.
    episode_length: int32 `[N]`, length of that episode in steps, otherwise 0.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray
    action_used: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray


class VectorEnv(ABC):
    """N environments of one kind that are stepped together, with next-step autoreset."""

    spec: EnvSpec
    num_envs: int

    @abstractmethod
    def reset(self, seed: int) -> np.ndarray:
        """Reset all environments and return their observations, `[N, S, *frame_shape]`.

        Environment i gets the seed `seed + i`; seed >= 1. Raises ValueError for a seed out of range.
        """

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Advance every environment by one action, int64 `[N]`. Raises ValueError for an action out of range."""

    def render(self) -> np.ndarray:
        """Return the screen, uint8 `[H, W, 3]`. Raises RuntimeError if the environment was not made for rendering."""
        raise RuntimeError(f"{type(self).__name__} was not made for rendering")

    def close(self) -> None:  # noqa: B027  (most families have nothing to release)
        """Release the resources of the environment."""
