"""The values among which `--tune` searches: those of the command, or those that a setting declares."""

from __future__ import annotations

import re
from typing import Any

from agents import find_agent
from learner.settings.other_names import RENAMED
from learner.settings.schema import agent_settings, table_of
from setting import AUTO, Linear, Log, OneOf, Search, SettingField

OF_THE_RUN = ("preset", "agent", "env", "environment_max_steps", "seed", "reproducible", "learner_count", "return_window")
"""Settings of kind `run` that no search may change: they say what is trained, and how long."""
FIXED = ("atoms", "critic_quantiles", "critics", "head_units", "population", "quantiles", "v_max", "v_min")
"""Numbers that decide which tensors an agent has, or what they mean, so that no checkpoint can go on with others."""
SEPARATOR = re.compile(r",(?=\s*[A-Za-z_])")
"""Between two settings of `--tune`. A comma before a number belongs to a value, such as hidden_sizes=64,64."""
RANGE = re.compile(r"(.+?)\.\.(.+)")
WIDE = 100
"""Largest number over smallest from which on a range that declares nothing else is searched by logarithms."""

Ranges = dict[str, Search]


def ranges_of(text: str, agent: str, *, changing: bool = False) -> Ranges:
    """The values among which each setting of `--tune` is searched. Raises ValueError with one line.

    changing: whether only numbers that may change within a run can be searched.
    """
    table, found = table_of(agent), {}
    usual = [name for name in find_agent(agent).tuned if not changing or not _why_constant(name, agent)]
    for part in usual if text == AUTO else SEPARATOR.split(text):
        name, _, values = (piece.strip() for piece in part.partition("="))
        name = RENAMED.get(name, name)
        if name not in table or table[name].setting.kind != "run" or name in OF_THE_RUN:
            raise ValueError(f"tune: wanted settings that decide what agent {agent} learns from, got {part.strip()!r}")
        if name in found:
            raise ValueError(f"tune: wanted each setting once, got {name} twice")
        if changing and (wanted := _why_constant(name, agent)):
            raise ValueError(f"tune: wanted {wanted} with method pbt, got {name}")
        found[name] = _read(table[name], values) if values else _declared(table[name])
    return found


def _why_constant(name: str, agent: str) -> str:
    """What is wanted in place of a setting that stays as it is within a run; empty for one that may change."""
    table = agent_settings(agent)
    if name not in table or table[name].type not in (int, float):
        return f"numbers among the settings of agent {agent}"
    return "settings that may change within a run" if name in FIXED else ""


def _declared(field: SettingField) -> Search:
    """The range that the setting's declaration says, or all of its values if they have names. Raises ValueError."""
    if field.setting.search:
        return field.setting.search
    if names := (True, False) if field.type is bool else field.choices():
        return OneOf(names)
    raise ValueError(f"tune: wanted a range of {field.name}, such as {field.name}=LOW..HIGH, got none: it declares none")


def _read(field: SettingField, text: str) -> Search:
    """The range or the values that the command gives. Raises ValueError."""
    is_range = RANGE.fullmatch(text) if field.type in (int, float) else None
    values = [field.parse(each.strip()) for each in (is_range.groups() if is_range else text.split(":"))]
    for value in values:
        field.check(value)
    if is_range:
        low, high = values
        if not low < high:
            raise ValueError(f"tune: wanted a range of {field.name} from a number to a larger one, got {text}")
        wide = low > 0 and (isinstance(field.setting.search, Log) or high >= WIDE * low)
        return Log(low, high) if wide else Linear(low, high)
    if len(set(values)) < max(2, len(values)):
        raise ValueError(f"tune: wanted two different values of {field.name} or more, got {text}")
    return OneOf(tuple(values))


def contains(search: Search, value: Any) -> bool:
    """Whether a value is one of those that are searched."""
    if isinstance(search, OneOf):
        return value in search.values
    return isinstance(value, int | float) and search.low <= value <= search.high


def described(search: Search) -> str:
    """The values as `--tune` takes them."""
    if isinstance(search, OneOf):
        return ":".join(str(value).lower() if isinstance(value, bool) else str(value) for value in search.values)
    return f"{search.low:g}..{search.high:g}" + (" by logarithms" if isinstance(search, Log) else "")
