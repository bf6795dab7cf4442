"""Recognises environments of other interfaces than Gymnasium's, and says how they can be used."""

from __future__ import annotations

import sys
from collections.abc import Collection
from difflib import get_close_matches
from functools import partial
from typing import Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator, registry

GYM = "gym"
"""The package from which Gymnasium came. Its classes and its registry are others."""
MOST_IDS = 5
"""Ids that a line names at most."""
REMEDY = "use gymnasium in its place (import gymnasium as gym)"


def gym_line(module: str, name: str) -> str | None:
    """The line about an id that a module has registered with gym; None for any other id."""
    registry = getattr(sys.modules.get(f"{GYM}.envs.registration"), "registry", {})
    if name not in getattr(registry, "env_specs", registry):  # the first until gym 0.25
        return None
    return (
        f"env: wanted an id registered with gymnasium, got {name!r}, which {module} registers with the earlier package {GYM}: "
        f"{REMEDY}, or install shimmy[gym-v26] and give --env=shimmy:GymV26Environment-v0 "
        f'--env_args=\'{{"env_id": "{module}:{name}", "make_kwargs": {{"disable_env_checker": true}}}}\''
    )


def unknown_line(module: str, name: str, earlier: Collection[str]) -> str:
    """The line about an id that a module does not register. It names ids that are not among the `earlier` ones."""
    if not module:
        return f"env: wanted a registered id, such as {get_close_matches(name, registry, n=1, cutoff=0)[0]}, got {name!r}"
    new = [env_id for env_id in registry if env_id not in earlier]
    near = sorted(get_close_matches(name, new, n=MOST_IDS, cutoff=0))
    known = f"{', '.join(near)}{', ...' * (len(new) > len(near))}" if new else "no id of gymnasium"
    return f"env: wanted an id that the module {module} registers, got {name!r}; its import registered {known}"


def module_of(entry: Any) -> str:
    """The module of an entry point, which may be a text, a callable or a partial one; empty if it has none."""
    while isinstance(entry, partial):
        entry = entry.func
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def interface_line(registered: Registered, arguments: dict[str, Any], env_id: str) -> str | None:
    """The line about an entry point that returns something else than an environment of Gymnasium. Calls it once more."""
    entry = registered.entry_point
    assert entry is not None
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        made: Any = creator(**{**registered.kwargs, **arguments})
    except Exception:  # the constructor of a user's environment may raise anything
        return None
    agents = getattr(made, "possible_agents", None)
    if agents is not None or any(base.__module__.partition(".")[0] == "pettingzoo" for base in type(made).__mro__):
        named = f" ({', '.join(map(str, agents))})" if isinstance(agents, list | tuple) and len(agents) < 10 else ""
        got = f"an environment of PettingZoo, whose agents{named} act in turn or together"
        hint = "register an environment that shows one agent and plays the others itself"
    elif _comes_from_gym(made):
        got, hint = f"an environment of the earlier package {GYM}", REMEDY
    else:
        got, hint = f"a {type(made).__module__}.{type(made).__qualname__}", "let the class inherit from gymnasium.Env"
    return f"env: wanted {env_id} to be a gymnasium.Env with one agent, got {got}; {hint}"


def check_space(env: Any, name: str, env_id: str) -> None:
    """Raise ValueError if the attribute `name` of an environment is not a space of Gymnasium."""
    space = getattr(env, name, None)
    if not isinstance(space, spaces.Space):
        got = "none" if space is None else f"one of {type(space).__module__}.{type(space).__name__}"
        hint = f"; {REMEDY}" if _comes_from_gym(space) else ""
        raise ValueError(f"env {env_id}: wanted {name} to be a space of gymnasium.spaces, got {got}{hint}")


def _comes_from_gym(thing: Any) -> bool:
    return any(base.__module__.partition(".")[0] == GYM for base in type(thing).__mro__)
