"""The toy family: small environments that are learned within seconds, for tests and demonstrations.

Each tests one thing, and is not learned if the program does it wrongly: `Catch-v0` one choice, `Reach-v0` real numbers,
`Locks-v0` several choices, `Masked-v0` choices that are not always legal, `Recall-v0` memory, `Bandit-v0` a choice that pays at
once, `BitFlip8-v0` and `BitFlip15-v0` goals, `Avoid-v0` together with `Catch-v0` two tasks of one policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wrappers.spec import Display, EnvConfig, EnvDescription, EnvSpec, VectorEnv
from wrappers.toys.bandit import Bandit
from wrappers.toys.base import SHOWN_SECONDS, Toy
from wrappers.toys.bit_flip import BitFlip8, BitFlip15
from wrappers.toys.catch import Avoid, Catch
from wrappers.toys.locks import Locks
from wrappers.toys.masked import Masked
from wrappers.toys.reach import Reach
from wrappers.toys.recall import Recall

TOYS: dict[str, type[Toy]] = {
    Avoid.env_id: Avoid,
    Catch.env_id: Catch,
    Reach.env_id: Reach,
    Locks.env_id: Locks,
    Masked.env_id: Masked,
    Recall.env_id: Recall,
    Bandit.env_id: Bandit,
    BitFlip8.env_id: BitFlip8,
    BitFlip15.env_id: BitFlip15,
}
"""Environment id -> class."""


def known_ids() -> Mapping[str, str]:
    """All ids of the family, each mapped to itself."""
    return {env_id: env_id for env_id in TOYS}


def matches(env_id: str) -> bool:
    """Return whether `env_id` names a toy environment."""
    return env_id in TOYS


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of a toy."""
    return TOYS[config.env].make_spec(config)


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return no lines: a toy is the same everywhere."""
    return []


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Return N environments. numpy steps them, so `num_threads` has no effect."""
    return TOYS[config.env](config, num_envs)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Return one environment that can be rendered. With "human" it is also printed at every step."""
    return TOYS[config.env](config, 1, render_mode)


def describe(config: EnvConfig) -> EnvDescription:
    """The toy as it is: every episode is a whole game."""
    return EnvDescription(config, display=Display(steps_per_second=1.0 / SHOWN_SECONDS))
