"""Types that all environment families share: the description of an environment, the result of a step, the interface.

Autoreset is *next-step* everywhere, which is the default of Gymnasium's vector environments. The step that ends an episode
returns the final observation of that episode. The next call of `step` ignores the environment's action, resets it and
returns the first observation of the next episode with reward 0. `Step.reset` and `Step.action_used` mark that step, so
that the learner leaves it out of the loss. A truncated step is followed by the row of its final observation, whose value
the learner bootstraps from.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from setting import Setting, check_fields
from wrappers.infos import Infos
from wrappers.spaces import ActionSpace, Goals, Leaf, leaves_to_json

# Stored trajectories depend on all of these settings. Each kind with `families` is read by these families only.
_Stored = partial(Setting, stored=True)
_Atari = partial(Setting, stored=True, families=("atari",))
_Frames = partial(Setting, stored=True, families=("atari", "toy"))
_Loop = partial(Setting, stored=True, families=("gymnasium",))
_Gymnasium = partial(Setting, stored=True, families=("envpool", "gymnasium"))
_Spaces = partial(Setting, stored=True, families=("envpool", "gymnasium", "served"))
_Served = partial(Setting, stored=True, families=("served",))


class NoAnswerError(BaseException):
    """The code of others took too long. Not an Exception, which that code may catch."""


FAILURES = (Exception, SystemExit, NoAnswerError)
"""The errors of the code of an environment. `sys.exit` in it ends the environment, not the program."""

AUTO_NAME = "auto"
NO_NAME = "none"

CHANNELS_FIRST, CHANNELS_LAST = "channels_first", "channels_last"
BY_COLOURS = "by_colours"
"""The guess of runs that were saved before there was the setting `observation_layout`."""


def parse_resolution(text: str) -> tuple[int, int]:
    """The height and width in pixels that `height,width` names. Raises ValueError."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"frame_scale_resolution: wanted height,width in pixels such as 84,84, got {text!r}")
    return int(parts[0]), int(parts[1])


def parse_env_args(text: str) -> dict[str, Any]:
    """The keyword arguments that a JSON object names. Raises ValueError."""
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f'env_args: wanted a JSON object such as {{"gravity": -5.0}}, got {text!r}')
    return arguments


def parse_env_wrappers(text: str) -> list[tuple[str, str]]:
    """Module and class of each wrapper that `module:Class,module:Class` names; none for `none`. Raises ValueError."""
    named = [] if text == NO_NAME else [part.strip().rpartition(":") for part in text.split(",")]
    if not all(module and name.isidentifier() for module, _, name in named):
        raise ValueError(f"env_wrappers: wanted none or module:Class,module:Class, got {text!r}")
    return [(module, name) for module, _, name in named]


def tasks_of(env: str) -> tuple[str, ...]:
    """The ids of the environments that `env` names: one, or those of a list."""
    return tuple(name.strip() for name in env.split(","))


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how its observations are made. A step is one action, in Atari games for `skipped_frames` frames."""

    env: Annotated[
        str,
        _Stored(
            "Environment id: PongNoFrameskip-v4, ALE/Breakout-v5, Catch-v0, any id of Gymnasium such as CartPole-v1, "
            "package.module:Id-v0, which imports that module first, or envpool:Ant-v5. Several ids, as ID,ID, "
            "are the tasks of one policy; their spaces must be equal."
        ),
    ] = "PongNoFrameskip-v4"
    frames_stacked: Annotated[
        int,
        _Stored(
            "Frames in one observation; 1 unless it is given for environments of Gymnasium and EnvPool.",
            "a whole number of frames from 1 to 64",
            1,
            64,
        ),
    ] = 4
    max_episode_frames: Annotated[
        int, _Frames("Emulator frames after which an episode is cut.", "a whole number of frames >= 1", 1, 1e9)
    ] = 108_000
    core_inputs: Annotated[
        bool, _Stored("Add the previous action and the previous reward to the observations, for a core to remember.")
    ] = False
    task_input: Annotated[
        bool, _Stored("With several environments: the network reads which one it plays, as a one-hot vector.")
    ] = False

    frame_scale_resolution: Annotated[str, _Atari("Size of a frame, height,width in pixels.", check=parse_resolution)] = "84,84"
    skipped_frames: Annotated[
        int,
        _Atari("Emulator frames that one step lasts (the action is repeated).", "a whole number of frames from 1 to 64", 1, 64),
    ] = 4
    noop_threshold: Annotated[
        int,
        _Atari(
            "An episode starts with fewer no-op frames than this, their number drawn at random: 0 to 29 for 30, none for 0. "
            "The FIRE of a start counts as one.",
            "a whole number of frames from 0 to 1000",
            0,
            1000,
        ),
    ] = 30
    grayscaling_frames: Annotated[bool, _Atari("Grey frames; --nograyscaling_frames gives RGB.")] = True
    episodic_life: Annotated[
        bool, _Atari("A lost life ends the episode for the learner; reported returns are for whole games.")
    ] = True
    fire_reset: Annotated[
        bool, _Atari("Press FIRE at an episode's start and after a lost life, if the game has that button.")
    ] = True
    sticky_actions: Annotated[
        float,
        _Atari(
            "Probability that the emulator repeats the action before, at each frame (0.25 in the machado protocol).",
            "a probability in [0, 1]",
            0,
            1,
        ),
    ] = 0.0
    full_action_space: Annotated[bool, _Atari("All 18 actions instead of those the game uses.")] = False

    max_episode_steps: Annotated[
        int,
        _Gymnasium(
            "Steps after which an episode is cut; 0: the limit of the environment's id.", "a whole number of steps >= 0", 0, 1e9
        ),
    ] = 0
    action_mask: Annotated[
        str,
        _Spaces(
            "Entry of a Dict observation or of info that marks legal actions with 1; auto takes an entry named action_mask if "
            "there is one, none takes no entry."
        ),
    ] = AUTO_NAME
    ignored_observations: Annotated[
        str,
        _Spaces(
            "Entries of a Dict observation that the policy does not get: name,name or none; auto leaves out texts, such as "
            "the mission of MiniGrid."
        ),
    ] = AUTO_NAME
    observation_layout: Annotated[
        str,
        _Spaces(
            "Place of the channels in images of three dimensions; auto guesses it for each image by its shape, and by_colours "
            "as earlier versions of this program did.",
            choices=(AUTO_NAME, CHANNELS_FIRST, CHANNELS_LAST, BY_COLOURS),
        ),
    ] = AUTO_NAME
    env_args: Annotated[str, _Gymnasium("Keyword arguments of the environment, as a JSON object.", check=parse_env_args)] = "{}"
    env_wrappers: Annotated[
        str,
        _Loop(
            "Wrappers of Gymnasium around each environment: module:Class,module:Class, the innermost first, or none.",
            check=parse_env_wrappers,
        ),
    ] = NO_NAME

    episodic_count: Annotated[
        float,
        _Loop(
            "Add this number to the learned reward of a step, divided by the root of the visits of its observation in the "
            "episode, such as 0.001 for MiniGrid; 0: none. Reported returns stay without it.",
            "a weight from 0 to 1000",
            0,
            1000,
        ),
    ] = 0.0

    spaces: Annotated[
        str,
        _Served(
            "Spaces of an environment that clients play, as a JSON object or a file with one (docs/protocol.md); none takes "
            "those of the first client."
        ),
    ] = NO_NAME

    def __post_init__(self) -> None:
        check_fields(self)
        if not all(tasks_of(self.env)):
            raise ValueError(f"env: wanted ids separated by commas, got an empty one in {self.env!r}")
        if self.episodic_count and self.core_inputs:
            got = f"got {self.episodic_count:g}"
            raise ValueError(f"episodic_count: wanted 0 with core_inputs, whose rewards have no bonus in a test, {got}")

    @property
    def tasks(self) -> tuple[EnvConfig, ...]:
        """The configuration of each environment that `env` names."""
        names = tasks_of(self.env)
        return (
            (self,)
            if len(names) == 1
            else tuple(replace(self, env=name, core_inputs=False, task_input=False) for name in names)
        )

    @property
    def frame_height(self) -> int:
        """Height of a frame in pixels."""
        return parse_resolution(self.frame_scale_resolution)[0]

    @property
    def frame_width(self) -> int:
        """Width of a frame in pixels."""
        return parse_resolution(self.frame_scale_resolution)[1]


@dataclass(frozen=True)
class EnvSpec:
    """Shapes and spaces of one environment, which are known before any process starts.

    Args:
        env: its id, or a list of those of several tasks.
        frame_shape: shape of ONE frame, such as `[H, W]`, `[H, W, C]` or `[F]`. An observation is
            `[frames_stacked, *frame_shape]`.
        frame_dtype: name of a frame's numpy dtype.
        frames_stacked: frames of an observation.
        action: what an action is.
        frames_per_step: emulator frames that one step advances; 1 for environments without an emulator.
        leaves: the parts of a frame that has several. It is then uint8 `[bytes]`, see `wrappers.spaces.Packing`.
        goals: of an environment whose observations name a goal, otherwise None.
    """

    env: str
    frame_shape: tuple[int, ...]
    frame_dtype: str
    frames_stacked: int
    action: ActionSpace
    frames_per_step: int = 1
    leaves: tuple[Leaf, ...] = ()
    goals: Goals | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.frames_stacked, *self.frame_shape)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ids of its environments. Environment i of a run plays number i mod their count."""
        return tasks_of(self.env)

    def to_json(self) -> dict[str, Any]:
        """Plain data that describes the environment in checkpoints."""
        plain = {**vars(self), "frame_shape": list(self.frame_shape), "action": self.action.to_json()}
        goals = plain.pop("goals")  # only where there are some, so that other files stay as they were
        return {**plain, "leaves": leaves_to_json(self.leaves), **({"goals": goals.to_json()} if goals else {})}


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
    """The facts that evaluation and export need about an environment, besides its `EnvSpec`.

    evaluation_config: the environment in which an agent is evaluated; its episodes are whole games.
    protocols: published evaluation protocols of the family, name -> the settings that each prescribes.
    protocol_settings: settings of the family on which a score depends, as plain data for JSON.
    protocol_text: the same settings as phrases for a printed line.
    preprocessing: the steps that make a frame from the raw environment, in order.
    game_name: name in tables of published scores, the same for every id of one game; None if there are none.
    counts_frames: whether the protocol names frames: their shape, skip and limit.
    start_seconds: seconds in which one environment is made and reset on a busy machine.
    reset_seconds: the same of a later reset and step, where environments are stepped in turn; 0 if it is not known.
    needs_close: whether its processes should end in order, see `VectorEnv`.
    has_pictures: whether it says that it can render pictures.
    """

    evaluation_config: EnvConfig
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    protocol_settings: Mapping[str, Any] = field(default_factory=dict)
    protocol_text: tuple[str, ...] = ()
    preprocessing: tuple[str, ...] = ()
    display: Display = field(default_factory=Display)
    game_name: str | None = None
    counts_frames: bool = True
    start_seconds: float = 1.0
    reset_seconds: float = 0.0
    needs_close: bool = False
    has_pictures: bool = True


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
    infos: numbers that the environments report in addition; None as long as there were none.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray
    action_used: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    infos: Infos | None = None


class VectorEnv(ABC):
    """N environments of one kind that are stepped together, with next-step autoreset.

    needs_close: whether a process must call `close` before it exits, because the environments may hold processes or files.
    """

    spec: EnvSpec
    num_envs: int
    needs_close: bool = False

    @abstractmethod
    def reset(self, seed: int) -> np.ndarray:
        """Reset all environments and return their observations, `[N, S, *frame_shape]`.

        Environment i gets the seed `seed + i`; seed >= 1. Raises ValueError for a seed out of range.
        """

    @abstractmethod
    def step(self, actions: np.ndarray) -> Step:
        """Advance every environment by one action, `[N, *action_shape]`. Raises ValueError for an action out of range."""

    def goal_function(self, name: str) -> Callable[..., Any] | None:
        """The function `name` of `Goals.functions`. It takes achieved goals, desired goals and an info. None if it has none."""
        return None

    def render(self) -> np.ndarray:
        """Return the screen, uint8 `[H, W, 3]`. Raises RuntimeError if the environment was not made for rendering."""
        raise RuntimeError(f"{type(self).__name__} was not made for rendering")

    def close(self) -> None:  # noqa: B027  (most families have nothing to release)
        """Release the resources of the environment."""
