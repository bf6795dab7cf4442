"""Environments: each family is one module with the functions of `Family` and one line in `ENVIRONMENTS`.

The functions of this package pick the family of an `EnvConfig` and call it. The rest of the program sees only `EnvSpec`,
`Step` and `VectorEnv`.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from setting import listed
from wrappers import atari, envpool_env, gymnasium_env, served, toy
from wrappers.answering import is_limited, watched
from wrappers.episodic_count import EpisodicCount
from wrappers.folder import in_own_folder
from wrappers.many import MOST_TASKS, ManyEnv, ManySingle, joined_description, joined_spec
from wrappers.previous import PreviousEnv, with_previous
from wrappers.spec import FAILURES, Display, EnvConfig, EnvDescription, EnvSpec, Step, VectorEnv, parse_env_args, tasks_of

__all__ = [
    "ENVIRONMENTS",
    "Display",
    "EnvConfig",
    "EnvDescription",
    "EnvSpec",
    "Family",
    "Step",
    "VectorEnv",
    "close_if_needed",
    "close_quietly",
    "describe_env",
    "env_notes",
    "family_of",
    "make_single_env",
    "make_spec",
    "make_vector_env",
    "other_setting",
    "usual_settings",
]

RENDER_MODES = (None, "rgb_array", "human")
SUGGESTED = 4  # closest ids that are considered; those of one environment give one suggestion


class Family(Protocol):
    """Functions that the module of an environment family provides. The callers have checked every argument."""

    def known_ids(self) -> Mapping[str, str]:
        """All ids of the family, each mapped to the usual id of its environment. An unknown id is compared with them."""

    def matches(self, env_id: str) -> bool:
        """Return whether this family makes the environment `env_id`."""

    def make_spec(self, config: EnvConfig) -> EnvSpec:
        """Return the shapes and counts of the environment, without keeping an environment open."""

    def notes(self, config: EnvConfig, given: Collection[str]) -> list[str]:
        """Return one line for each way in which the environment may differ from what its id suggests.

        given: names of the settings that the user set. They need no line.
        """

    def make_vector(self, config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        """Return `num_envs` environments that are stepped together, as fast as the family can."""

    def make_single(self, config: EnvConfig, render_mode: str | None) -> VectorEnv:
        """Return one environment that can be rendered. It gives the observations, rewards and ends of `make_vector`."""

    def describe(self, config: EnvConfig) -> EnvDescription:
        """The facts that evaluation and export need; `EnvDescription(config)` describes a plain environment."""


ENVIRONMENTS: dict[str, Family] = {
    "atari": atari,
    "toy": toy,
    "envpool": envpool_env,
    "served": served,
    "gymnasium": gymnasium_env,
}
"""Name -> family. The first family that matches an id makes it."""

EXAMPLES = "PongNoFrameskip-v4, CartPole-v1, envpool:Ant-v5, or minigrid:MiniGrid-Empty-5x5-v0 (package:id)"
"""Ids for a person whose own id is unknown: a package's environments are known only after its import."""

USUAL_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "envpool": {"frames_stacked": 1, "clip_rewards": False},
    "gymnasium": {"frames_stacked": 1, "clip_rewards": False, "worker_timeout": 60.0},
    "served": {"frames_stacked": 1, "clip_rewards": False, "worker_timeout": 60.0},
}
"""Family -> defaults of settings that differ in it. An environment of any kind may take seconds to reset, and
the size of its rewards matters."""


def family_of(env_id: str) -> str | None:
    """Name of the family that makes `env_id`, or the first of several environments; None if there is none."""
    env_id = tasks_of(env_id)[0]
    return next((name for name, family in ENVIRONMENTS.items() if family.matches(env_id)), None)


def usual_settings(env_id: str) -> Mapping[str, Any]:
    """Settings whose default is another one in the family of `env_id`, with that default."""
    usual, family = USUAL_SETTINGS.get(family_of(env_id) or "", {}), family_of(env_id)
    # Games have equal actions only if they have all of them.
    return {**usual, "full_action_space": True} if family == "atari" and len(tasks_of(env_id)) > 1 else usual


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the shapes and counts of the environment that `config` names. Raises ValueError for an unknown id."""
    spec = _spec_of_tasks(config) if len(config.tasks) > 1 else _family(config.env).make_spec(config)
    if config.episodic_count:
        return replace(spec, goals=None)  # the bonus belongs to no goal
    return with_previous(spec) if config.core_inputs else spec


def _spec_of_tasks(config: EnvConfig) -> EnvSpec:
    """The spec of several environments. Raises ValueError if they do not go together."""
    names, families = tasks_of(config.env), [family_of(task.env) for task in config.tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"env: wanted different environments, got {twice[0]} {names.count(twice[0])} times")
    if len(names) > MOST_TASKS:
        raise ValueError(f"env: wanted at most {MOST_TASKS} environments, got {len(names)}")
    specs = [make_spec(task) for task in config.tasks]  # first, because an unknown id is the likelier mistake
    if len(set(families)) > 1:
        kinds = ", ".join(f"{name} ({family})" for name, family in zip(names, families, strict=True))
        raise ValueError(f"env: wanted environments of one family, got {kinds}")
    if "served" in families:
        raise ValueError(f"env: wanted one environment that clients play, got {config.env}")
    return joined_spec(config, specs)


def describe_env(config: EnvConfig) -> EnvDescription:
    """The facts that evaluation and export need about the environment that `config` names."""
    if len(config.tasks) > 1:
        return joined_description(config, [describe_env(task) for task in config.tasks])
    return _family(config.env).describe(config)


def env_notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return lines for the user about the environment, as `Family.notes` has them. Raises ValueError for an unknown id."""
    lines = [line for task in config.tasks for line in _family(task.env).notes(task, given)]
    if config.task_input and len(config.tasks) == 1:
        lines.append("task_input is not used with one environment")
    return list(dict.fromkeys(lines))


def make_vector_env(config: EnvConfig, num_envs: int, num_threads: int = 1, first: int = 0) -> VectorEnv:
    """Return `num_envs` environments with next-step autoreset. Raises ValueError for bad counts or an unknown id.

    Args:
        config: the environment and how its observations are made.
        num_envs: number of environments, at least 1.
        num_threads: number of native threads, for families that have them.
        first: number of environment 0 in the run, which decides its task if `config` names several environments.
    """
    for name, value in (("num_envs", num_envs), ("num_threads", num_threads)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: wanted an integer >= 1, got {value!r}")
    if len(config.tasks) > 1:
        many = ManyEnv(config, num_envs, first, lambda task, count: make_vector_env(task, count, num_threads))
        return _with_inputs(_joint(config), many)
    family = _family(config.env)
    return _made(config, num_envs, lambda: family.make_vector(config, num_envs, num_threads))


def _made(config: EnvConfig, num_envs: int, make: Callable[[], VectorEnv]) -> VectorEnv:
    """Make environments in their own folder, with limits of time and the inputs of a core."""
    description = describe_env(config) if is_limited() else EnvDescription(config)
    start, step = (num_envs * seconds for seconds in (description.start_seconds, description.reset_seconds))
    return _with_inputs(config, watched(lambda: in_own_folder(make), config.env, start, step))


def _joint(config: EnvConfig) -> EnvConfig:
    """The configuration of what several environments have together: those of each task have the bonus already."""
    return replace(config, episodic_count=0.0)


def _with_inputs(config: EnvConfig, env: VectorEnv) -> VectorEnv:
    if config.episodic_count:
        return EpisodicCount(env, config.episodic_count)
    return PreviousEnv(env) if config.core_inputs else env


def other_setting(env_id: str, env_args: str) -> str:
    """The flags to give in place of arguments that the family of an environment does not take; nothing if that is not known."""
    return atari.other_setting(env_id, parse_env_args(env_args)) if family_of(env_id) == "atari" else ""


def close_if_needed(env: VectorEnv) -> None:
    """Close an environment before its process exits, if it may hold processes or files. Its errors are of no interest then."""
    if env.needs_close:
        close_quietly(env)


def close_quietly(env: VectorEnv) -> None:
    """Close an environment. Its errors are left out, because they would hide why a step failed before."""
    with contextlib.suppress(*FAILURES):
        env.close()


def make_single_env(config: EnvConfig, render_mode: str | None = None) -> VectorEnv:
    """Return one environment (`num_envs` 1) that can be rendered. Raises ValueError for a bad mode or an unknown id.

    Args:
        config: the environment and how its observations are made.
        render_mode: "rgb_array" lets `render()` return RGB uint8 `[H, W, 3]`; "human" shows every step on the screen, and
            only some families can then `render()` too; None allows no rendering.
    """
    if render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode: wanted one of {RENDER_MODES}, got {render_mode!r}")
    if len(config.tasks) > 1:
        return _with_inputs(_joint(config), ManySingle(config, lambda task: make_single_env(task, render_mode)))
    family = _family(config.env)
    return _made(config, 1, lambda: family.make_single(config, render_mode))


def _family(env_id: str) -> Family:
    """The family that makes `env_id`. Raises ValueError with the closest known ids."""
    if name := family_of(env_id):
        return ENVIRONMENTS[name]
    if game := atari.game_of_memory(env_id):
        raise ValueError(f"env: wanted a game's pictures, got {env_id}; {atari.memory_hint(game)}")
    ids = {known.lower(): usual for family in ENVIRONMENTS.values() for known, usual in family.known_ids().items()}
    close = dict.fromkeys(ids[match] for match in difflib.get_close_matches(env_id.lower(), ids, n=SUGGESTED))
    hint = f"did you mean {listed(close)}?" if close else f"for example {EXAMPLES}"
    raise ValueError(f"env: wanted an environment of the families {', '.join(ENVIRONMENTS)}, got {env_id!r}; {hint}")
