"""The family of all environments that Gymnasium can make: any id of its registry, and `package.module:Id-v0`.

The module of such an id is imported first, also from the current folder, so that it can register its environments. If an id has
a vector environment that takes the same arguments and has next-step autoreset, it is used. Otherwise N environments are stepped
in a loop (`wrappers/gymnasium_vector.py`).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import find_highest_version, load_env_creator, parse_env_id, registry
from gymnasium.error import DependencyNotInstalled, Error
from gymnasium.vector import AutoresetMode

from wrappers.drawing import drawing_hint, rendering_variables
from wrappers.errors import import_failed, in_words
from wrappers.facts import Facts, probe
from wrappers.goals import goals_of, with_functions
from wrappers.gymnasium_contract import ContractError, read_reset, reset_hint
from wrappers.gymnasium_foreign import check_space, gym_line, interface_line, module_of, unknown_line
from wrappers.gymnasium_spaces import ObservationPlan, texts_of, translate_actions
from wrappers.gymnasium_vector import (
    GymnasiumLoop,
    NativeVector,
    OneOfVector,
    SingleEnv,
    Translation,
    closed_on_failure,
    first_info,
)
from wrappers.legal import random_actions
from wrappers.space_json import spaces_text
from wrappers.spec import (
    AUTO_NAME,
    FAILURES,
    NO_NAME,
    Display,
    EnvConfig,
    EnvDescription,
    EnvSpec,
    Step,
    VectorEnv,
    parse_env_args,
    parse_env_wrappers,
)

NAME = "wrappers.gymnasium_env"
MODULES = {"MiniGrid": "minigrid", "BabyAI": "minigrid", "MinAtar": "minatar.gym"}
MODULES |= dict.fromkeys(("dm_control", "GymV21Environment", "GymV26Environment"), "shimmy")
"""Beginning of an id -> the module that registers such ids, so that they need no `module:`."""

USUAL_PACE = 30.0  # pictures per second of an environment that names none
SLACK = 4.0
"""On a busy machine an environment may take this many times longer to start than when it was tried out."""

Arguments = dict[str, Any]


def known_ids() -> Mapping[str, str]:
    """All ids of the registry that Gymnasium can still make, each mapped to itself."""
    return {env_id: env_id for env_id, spec in registry.items() if not _is_foreign(spec) and not newer_id(env_id)}


def matches(env_id: str) -> bool:
    """Return whether `env_id` names a module, or an environment of the registry in any version."""
    if ":" in env_id or _beginning(env_id) in MODULES:
        return True
    try:
        namespace, name, _ = parse_env_id(env_id)
    except Error:
        return False
    return any((spec.namespace, spec.name) == (namespace, name) for spec in registry.values() if not _is_foreign(spec))


def make_spec(config: EnvConfig) -> EnvSpec:
    """Return the spec of an environment, as a child process found it. Raises ValueError if it cannot be made."""
    return probe(NAME, config).spec


def notes(config: EnvConfig, given: Collection[str]) -> list[str]:
    """Return a line about texts that the policy does not get, and those on how observations are read."""
    facts = probe(NAME, config)
    texts = facts.texts if config.ignored_observations == AUTO_NAME else ()
    return [*([f"ignored_observations={','.join(texts)} (a policy reads no texts)"] if texts else []), *facts.lines]


def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
    """Return N environments. Python steps them in this thread, so `num_threads` has no effect. Raises ValueError."""
    registered = find(config.env)
    made = [first := make_env(registered, config)]
    with closed_on_failure(made):
        translation = _translation_of(config, first)
        if native := _make_native(registered, config, num_envs, translation):
            first.close()
            return native
        for _ in range(num_envs - 1):
            made.append(make_env(registered, config))
        return GymnasiumLoop(made, translation)


def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
    """Return one environment that can be rendered. Raises ValueError if it cannot."""
    if render_mode is not None:
        os.environ.update(probe(NAME, config, render=True).variables)
    env = make_env(find(config.env), config, render_mode)
    with closed_on_failure([env]):
        return GymnasiumLoop([env], _translation_of(config, env))


def describe(config: EnvConfig) -> EnvDescription:
    """The description of an environment. Evaluation uses the same one: each of its episodes is a whole one."""
    return description_of(config, probe(NAME, config))


def description_of(config: EnvConfig, facts: Facts) -> EnvDescription:
    """The description of an environment by its facts."""
    limit = facts.max_episode_steps
    settings = {
        "version": facts.version,
        "max_episode_steps": limit,
        "env_args": parse_env_args(config.env_args),
        "normalisation": "in the network",
    }
    if config.env_wrappers != NO_NAME:  # otherwise the protocol of earlier checkpoints would differ
        settings["env_wrappers"] = config.env_wrappers
    text = (facts.version, f"episodes of at most {limit:,} steps" if limit else "no time limit", "normalised in the network")
    return EnvDescription(
        evaluation_config=replace(config, episodic_count=0.0),
        protocol_settings=settings,
        protocol_text=text,
        display=Display(facts.pictures_per_second),
        counts_frames=False,
        needs_close=True,
        start_seconds=max(1.0, SLACK * facts.start_seconds),
        reset_seconds=SLACK * facts.reset_seconds,
        has_pictures=facts.has_pictures,
    )


def try_out(config: EnvConfig, *, render: bool) -> Facts:
    """Make the environment, reset it and step it once; with `render`, render it too. Raises ValueError with one line."""
    started = time.perf_counter()
    registered = find(config.env)
    variables = rendering_variables() if render else {}
    # The variables come first: mujoco and pygame read them when they are loaded.
    os.environ.update(variables)
    env = make_env(registered, config, "rgb_array" if render else None)
    try:
        loop = GymnasiumLoop([env], _translation_of(config, env))
        made = time.perf_counter()
        check_first_step(loop, config.env)
        reset_seconds = time.perf_counter() - made
        if render:
            render_once(loop, env.metadata, config.env)
    finally:
        env.close()
    return Facts(
        spec=loop.spec,
        max_episode_steps=config.max_episode_steps or registered.max_episode_steps or 0,
        version=versions_of(registered),
        pictures_per_second=float(env.metadata.get("render_fps") or USUAL_PACE),
        start_seconds=time.perf_counter() - started,
        variables=variables,
        reset_seconds=reset_seconds,
        texts=texts_of(env.observation_space),
        lines=loop.lines(),
        has_pictures="rgb_array" in render_modes(env.metadata),
        spaces=spaces_text(env.observation_space, env.action_space, has_mask=loop.has_mask_in_info),
    )


def find(env_id: str) -> Registered:
    """The registry's entry of an id, after the import of its module. Raises ValueError with one line."""
    module, _, name = env_id.rpartition(":")
    module, earlier = module or MODULES.get(_beginning(name), ""), frozenset(registry)
    if module.endswith(".py"):
        raise ValueError(f"env: wanted a module without .py and an id that it registers, as in my_env:MyEnv-v0, got {env_id!r}")
    if module:
        try:
            imported = _import(module)
            if name not in registry and hasattr(imported, "register_envs"):  # MinAtar registers nothing by its import
                imported.register_envs()
            if name not in registry and hasattr(imported, "__path__") and find_spec(f"{module}.envs"):
                _import(f"{module}.envs")
        except FAILURES as error:
            raise ValueError(import_failed(f"the module {module} of env {env_id}", error)) from error
    if name in registry and not newer_id(name):
        return registry[name]
    if newer := newer_id(name):
        newer = env_id.removesuffix(name) + newer  # with the module that the id names
        raise ValueError(f"env: wanted an environment that Gymnasium can still make, got {env_id!r}; its current id is {newer}")
    raise ValueError(gym_line(module, name) or unknown_line(module, name, earlier))


def _beginning(env_id: str) -> str:
    """The part of an id before its first dash or slash."""
    return re.split("[-/]", env_id)[0]


def _import(module: str) -> ModuleType:
    """Import a module, also from the current folder. It may raise anything, because an import runs the user's code."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file of the user hides a package of ours
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # pygame prints lines where it finds no sound card
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every worker would repeat them
        return importlib.import_module(module)


def newer_id(env_id: str) -> str | None:
    """The current id of an environment, if `env_id` names no version or one that is gone; None for any other id."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except Error:
        return None
    newest = find_highest_version(namespace, name)
    if newest is None or newest == version:
        return None
    if env_id in registry and not _is_moved(registry[env_id]):
        return None
    return f"{namespace}/{name}-v{newest}" if namespace else f"{name}-v{newest}"


def make_env(registered: Registered, config: EnvConfig, render_mode: str | None = None) -> SingleEnv:
    """One environment, not reset. Raises ValueError with one line, whatever the environment raises."""
    arguments = parse_env_args(config.env_args)
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    if registered.entry_point is None and config.env_wrappers != NO_NAME:
        raise ValueError(f"env_wrappers: wanted none for {config.env}, which is made as a vector, got {config.env_wrappers}")
    try:
        if registered.entry_point is None:
            return OneOfVector(_make_vector(registered, config, 1, render_mode))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on deprecated versions and precision, which every worker would repeat
            _route_warnings(registered)
            env = gymnasium.make(
                registered, max_episode_steps=config.max_episode_steps or None, disable_env_checker=True, **arguments
            )
    except ImportError as error:
        raise ValueError(import_failed(f"a package that {config.env} needs", error)) from error
    except DependencyNotInstalled as error:
        raise ValueError(import_failed(f"a package that {config.env} needs", error.__cause__ or error)) from error
    except FAILURES as error:  # the constructor of a user's environment may raise anything
        if "gymnasium.Env" in str(error) and (line := interface_line(registered, arguments, config.env)):
            raise ValueError(line) from error
        got = in_words(error)
        if render_mode is None:
            raise ValueError(f"env: wanted {config.env} to be made, got {got}") from error
        hint = drawing_hint(str(error), config.env)
        raise ValueError(f"render: wanted {config.env} to be made with the mode {render_mode}, got {got}{hint}") from error
    return _wrapped(env, config)


def _wrapped(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """The environment within the wrappers that the user wants. Raises ValueError with one line."""
    for module, name in parse_env_wrappers(config.env_wrappers):
        try:
            env = getattr(_import(module), name)(env)
        except FAILURES as error:  # the code of a user's wrapper may raise anything
            env.close()
            line = f"env_wrappers: wanted {module}:{name} to wrap {config.env}, got {in_words(error)}"
            raise ValueError(line) from error
    return env


def _route_warnings(registered: Registered) -> None:
    """Let MuJoCo warn as Python does. By itself it prints the same lines for each environment, and appends them to a file in
    the current folder.
    """
    if isinstance(registered.entry_point, str):
        load_env_creator(registered.entry_point)  # imports MuJoCo, if the environment needs it
    if "mujoco" in sys.modules:
        sys.modules["mujoco"].set_mju_user_warning(warnings.warn)


def check_first_step(env: VectorEnv, env_id: str) -> Step:
    """Reset the environment and step it once. Raises ValueError with one line, whatever the environment raises."""
    try:
        observations = env.reset(1)
        return env.step(random_actions(env.spec, observations, np.random.default_rng(0)))
    except ContractError as error:
        raise ValueError(f"env {env_id}: {error}") from error
    except FAILURES as error:  # the code of a user's environment may raise anything
        if isinstance(env, GymnasiumLoop) and (line := env.explain(error)):
            raise ValueError(f"env {env_id}: {line}") from error
        raise ValueError(f"env: wanted a first reset and step of {env_id}, got {in_words(error)}") from error


def render_modes(metadata: Mapping[str, Any]) -> Sequence[Any]:
    """The modes of rendering that an environment names in its metadata."""
    return metadata.get("render_modes") or metadata.get("render.modes") or ()


def render_once(env: VectorEnv, metadata: Mapping[str, Any], env_id: str) -> None:
    """Render a picture. Raises ValueError with one line if that fails."""
    if "rgb_array" not in (modes := render_modes(metadata)):
        raise ValueError(f"render: wanted {env_id} to have the mode rgb_array, got {', '.join(map(str, modes)) or 'no mode'}")
    try:
        env.render()
    except (ImportError, DependencyNotInstalled) as error:
        raise ValueError(import_failed(f"a package that renders {env_id}", error.__cause__ or error)) from error
    except FAILURES as error:  # drivers and users' code may raise anything
        hint = drawing_hint(str(error), env_id)
        raise ValueError(f"render: wanted a picture of {env_id}, got {in_words(error)}{hint}") from error


def translate(
    config: EnvConfig, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any], info: Mapping[str, Any]
) -> Translation:
    """The spec of an environment with these spaces, and how they are translated. info: of a reset. Raises ValueError."""
    try:
        action, decode = translate_actions(actions)
        names = (config.action_mask, config.ignored_observations)
        plan = ObservationPlan(observations, action.mask_counts, *names, info, config.observation_layout)
    except ValueError as error:
        line = str(error)
        raise ValueError(f"env {config.env}: {line}" if line.startswith("wanted") else line) from None
    frame, stacked, goals = (plan.frame_shape, plan.frame_dtype), config.frames_stacked, goals_of(plan, observations)
    return Translation(EnvSpec(config.env, *frame, stacked, action, leaves=plan.leaves, goals=goals), plan, decode)


def _translation_of(config: EnvConfig, env: SingleEnv) -> Translation:
    """The translation of an environment. A reset tells whether its info holds a mask. Raises ValueError with one line."""
    for name in ("observation_space", "action_space"):
        check_space(env, name, config.env)
    try:
        _, info = read_reset(env.reset(seed=1))
    except ContractError as error:
        raise ValueError(f"env {config.env}: {error}") from error
    except FAILURES as error:  # the code of a user's environment may raise anything
        raise ValueError(f"env: wanted a first reset of {config.env}, got {in_words(error)}{reset_hint(error)}") from error
    translation = translate(config, env.observation_space, env.action_space, info)
    return translation._replace(spec=with_functions(translation.spec, env))


def _make_native(registered: Registered, config: EnvConfig, num_envs: int, translation: Translation) -> NativeVector | None:
    """The id's own vector environment, or None if it has none that resets as we do and fits the single environment."""
    # A vector environment would lack the wrappers of the single one.
    if registered.vector_entry_point is None or registered.additional_wrappers or config.env_wrappers != NO_NAME:
        return None
    try:
        vector = _make_vector(registered, config, num_envs)
    except (ImportError, TypeError, Error):
        return None  # it lacks a package or an argument that the single environment may not need
    if vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP and vector.num_envs == num_envs:
        with closed_on_failure([vector]):
            _, info = vector.reset(seed=1)
            own = translate(config, vector.single_observation_space, vector.single_action_space, first_info(info))
        if own.spec == replace(translation.spec, goals=own.spec.goals):
            return NativeVector(vector, own, num_envs)
    vector.close()
    return None


def _make_vector(registered: Registered, config: EnvConfig, num_envs: int, render_mode: str | None = None) -> Any:
    arguments: Arguments = parse_env_args(config.env_args)
    if config.max_episode_steps:
        arguments["max_episode_steps"] = config.max_episode_steps
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    return gymnasium.make_vec(registered, num_envs, "vector_entry_point", **arguments)


def _is_foreign(spec: Registered) -> bool:
    """Whether the entry belongs to the Atari family, or wraps environments of the old gym."""
    return spec.namespace == "ALE" or str(spec.entry_point).startswith(("ale_py", "shimmy")) or spec.id.startswith("GymV2")


def _is_moved(spec: Registered) -> bool:
    """Whether making the environment only says that it has moved to another package, as for MuJoCo's versions 2 and 3."""
    return callable(spec.entry_point) and "mujoco_py" in getattr(spec.entry_point, "__name__", "")


def versions_of(registered: Registered) -> str:
    """Name and version of the package of an environment, and of its physics."""
    module = module_of(registered.entry_point or registered.vector_entry_point)
    names = [module.partition(".")[0], *(("mujoco",) if ".mujoco." in module else ())]
    return ", ".join(map(version_of, names))


def version_of(package: str) -> str:
    """Name and version of a package; the name alone if it has no version."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return package
