"""The family of environments that are played by clients: `served:NAME`. The program has only their spaces.

The setting `spaces` holds them, as the first client sent them or a file gave them. So a resumed run knows the spec
without any client. No other room can make such an environment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces

from wrappers.facts import probe
from wrappers.gymnasium_env import NAME as GYMNASIUM
from wrappers.gymnasium_env import translate
from wrappers.gymnasium_spaces import translate_actions
from wrappers.gymnasium_vector import Translation
from wrappers.space_json import MOST_ENTRIES, MOST_NUMBERS, space_from_json, space_to_json
from wrappers.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete
from wrappers.spec import EnvConfig, EnvDescription, EnvSpec, VectorEnv

PREFIX = "served:"
NO_SPACES = "none"


@dataclass(frozen=True)
class ServedSpaces:
    """The spaces of an environment that clients play.

    has_mask: whether a mask comes with observations.
    """

    observation: spaces.Space[Any]
    action: spaces.Space[Any]
    has_mask: bool = False

    def to_json(self) -> dict[str, Any]:
        """The spaces as plain data, in the form of docs/protocol.md. Raises ValueError for a space that it does not have."""
        return {"observation": space_to_json(self.observation), "action": space_to_json(self.action), "mask": self.has_mask}

    @property
    def mask_size(self) -> int:
        """Numbers in a mask."""
        return sum(translate_actions(self.action)[0].mask_counts)

    def check_same(self, other: ServedSpaces) -> None:
        """Raise ValueError if the other spaces are not these. The order of a Dict does not matter."""
        mine, others = self.to_json(), other.to_json()
        for name, wanted in mine.items():
            if json.dumps(wanted, sort_keys=True) != json.dumps(others[name], sort_keys=True):
                raise ValueError(f"spaces: wanted the {name} {json.dumps(wanted)}, got {json.dumps(others[name])}")


def read_spaces(data: Any, most: int = MOST_NUMBERS) -> ServedSpaces:
    """The spaces that plain data describes, which may come from anywhere. Raises ValueError in one line.

    most: numbers of an observation.
    """
    if not isinstance(data, Mapping) or not {"observation", "action"} <= data.keys():
        raise ValueError(f"spaces: wanted an object with observation and action, got {str(data)[:80]}")
    has_mask = data.get("mask", False)
    if not isinstance(has_mask, bool):
        raise ValueError(f"spaces: wanted true or false for the mask, got {str(has_mask)[:80]}")
    found = []
    for name, limit in (("observation", most), ("action", MOST_ENTRIES)):
        try:
            found.append(space_from_json(data[name], limit))
        except ValueError as error:
            raise ValueError(f"spaces: {name}: {error}") from None
    return ServedSpaces(found[0], found[1], has_mask)


def parse_spaces(text: str) -> ServedSpaces:
    """The spaces that the setting `spaces` holds. Raises ValueError in one line."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"spaces: wanted a JSON object with observation and action, got {text[:80]!r}") from None
    return read_spaces(data)


def spaces_of(config: EnvConfig) -> ServedSpaces:
    """The spaces of any environment that clients may play: those of the setting, or of one that Gymnasium makes.

    Raises ValueError in one line.
    """
    if matches(config.env):
        return parse_spaces(config.spaces)
    from wrappers import family_of  # this package imports the families

    if family_of(config.env) != "gymnasium":
        return _spaces_of_spec(config)
    found = probe(GYMNASIUM, config).spaces
    if found.startswith("wanted"):
        raise ValueError(f"worker_kind: wanted spaces that clients can send, got those of {config.env}: {found}")
    return parse_spaces(found)


def _spaces_of_spec(config: EnvConfig) -> ServedSpaces:
    """The spaces of frames and actions of a family that has no spaces of Gymnasium. Raises ValueError if frames have parts."""
    from wrappers import make_spec as spec_of  # this package imports the families

    spec = spec_of(config)
    if spec.leaves:
        raise ValueError(f"env: wanted an environment whose observations are one array, got {config.env}")
    low, high = (0, 255) if spec.frame_dtype == "uint8" else (-np.inf, np.inf)
    observation = spaces.Box(low, high, spec.frame_shape, np.dtype(spec.frame_dtype).type)
    action = spec.action
    if isinstance(action, Discrete):
        return ServedSpaces(observation, spaces.Discrete(action.count))
    if isinstance(action, MultiDiscrete):
        return ServedSpaces(observation, spaces.MultiDiscrete(list(action.counts)))
    assert isinstance(action, Box)
    return ServedSpaces(observation, spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32)))


def translation_of(config: EnvConfig) -> Translation:
    """How the values of these spaces become frames, and actions those of the environment. Raises ValueError in one line."""
    spaces_ = spaces_of(config)
    name = ACTION_MASK if config.action_mask in ("auto", "none") else config.action_mask
    mask = {name: np.ones(spaces_.mask_size)} if spaces_.has_mask else {}
    return translate(config, spaces_.observation, spaces_.action, mask)


@lru_cache(maxsize=4)
def _spec_of(config: EnvConfig) -> EnvSpec:
    return translation_of(config).spec


def known_ids() -> Mapping[str, str]:
    """No ids: a client names its environment."""
    return {}


def matches(env_id: str) -> bool:
    """Return whether clients play the environment `env_id`."""
    return env_id.startswith(PREFIX)


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of the spaces. Raises ValueError if there are none, or they cannot be used."""
    return _spec_of(config)


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return lines on how images and other arrays of the observation are read."""
    return list(translation_of(config).plan.lines())


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Raise ValueError: only clients have the environment."""
    refuse(config)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Raise ValueError: only clients have the environment."""
    refuse(config)


def refuse(config: EnvConfig) -> NoReturn:
    """Raise ValueError: only clients have the environment."""
    raise ValueError(
        f"env: wanted an environment that this program can make, got {config.env}, which clients play; --env=ID names one with "
        "equal spaces"
    )


def describe(config: EnvConfig) -> EnvDescription:
    """The facts that are known without the environment."""
    return EnvDescription(config, counts_frames=False, has_pictures=False)
