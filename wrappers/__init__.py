"""Environments: one file a family, one line in `ENVIRONMENTS`, and three functions that make what an `EnvConfig` names.

A family is a module with the five functions of `Family`; the rest of the program sees only `EnvSpec`, `Step` and
`VectorEnv`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Protocol

from wrappers import atari, toy
from wrappers.spec import Display, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv

__all__ = [
    "ENVIRONMENTS",
    "Display",
    "EnvConfig",
    "EnvDescription",
    "EnvSpec",
    "Family",
    "Step",
    "VectorEnv",
    "describe_env",
    "make_single_env",
    "make_spec",
    "make_vector_env",
]

RENDER_MODES = (None, "rgb_array", "human")
SUGGESTED = 4  # ids that come closest; several may name one environment, which is suggested once


class Family(Protocol):
    """What the module of an environment family offers; its callers have checked every argument."""

    def known_ids(self) -> Mapping[str, str]:
        """Ids that an unknown one may have been meant for, each with the usual id of that environment, which is suggested."""

    def matches(self, env_id: str) -> bool:
        """Whether this family makes the environment `env_id`."""

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        """Describe the environment without keeping one."""

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        """`num_envs` environments stepped together, as fast as the family can."""

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        """One environment that can be watched; the same observations, rewards and ends as `make_vector` gives."""

    def describe(self, config: EnvConfig) -> EnvDescription:
        """What evaluation and export need to know; `EnvDescription(config)` describes a plain environment."""


ENVIRONMENTS: dict[str, Family] = {
    "atari": atari,
    "toy": toy,
}


def make_spec(config: EnvConfig) -> EnvSpec:
    """Shapes and counts of the environment that `config` names."""
    return _family(config.env).make_spec(config)


def describe_env(config: EnvConfig) -> EnvDescription:
    """What evaluation and export need to know of the environment that `config` names."""
    return _family(config.env).describe(config)


def make_vector_env(config: EnvConfig, num_envs: int, num_threads: int = 1) -> VectorEnv:
    """`num_envs` environments with next-step autoreset, by `num_threads` native threads where a family has them."""
    for name, value in (("num_envs", num_envs), ("num_threads", num_threads)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: wanted an integer >= 1, got {value!r}")
    return _family(config.env).make_vector(config, num_envs, num_threads)


def make_single_env(config: EnvConfig, render_mode: str | None = None) -> VectorEnv:
    """One environment behind the same interface (`num_envs` 1), whose `render()` gives RGB uint8 `[H, W, 3]`.

    render_mode: "rgb_array" for frames from `render()`, "human" to be shown too while it plays, None for neither.
    """
    if render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode: wanted one of {RENDER_MODES}, got {render_mode!r}")
    return _family(config.env).make_single(config, render_mode)


def _family(env_id: str) -> Family:
    for family in ENVIRONMENTS.values():
        if family.matches(env_id):
            return family
    ids = {known.lower(): usual for family in ENVIRONMENTS.values() for known, usual in family.known_ids().items()}
    close = dict.fromkeys(ids[match] for match in difflib.get_close_matches(env_id.lower(), ids, n=SUGGESTED))
    hint = f"did you mean {' or '.join(close)}?" if close else f"for example {next(iter(ids.values()))}"
    raise ValueError(f"env: wanted an environment of the families {', '.join(ENVIRONMENTS)}, got {env_id!r}; {hint}")
