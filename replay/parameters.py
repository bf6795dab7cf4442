"""`--replay_parameters`: a JSON list of replays, parsed into ReplayConfigs. Every mistake is one line.

A replay takes the keys of its type and of the strategies that it names. Any other key would have no effect and is refused.
The type `custom` exists here only: it is translated into the type that its strategies amount to. Other names of keys are
replaced before, in `learner/settings/other_names.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from replay.base import ReplayConfig
from replay.memory import parse_size
from replay.registry import REPLAYS
from replay.ring.retention import INSERTIONS
from setting import listed, settings_of

RATIO_TOLERANCE = 1e-3  # of the sum of ratios, so that three times 0.333 is accepted
SIZES = ("capacity", "memory", "steps")
ALWAYS = ("type", "sample_ratio")
CUSTOM = ("sample_strategy", "insert_strategy", "device")
"""The own keys of a custom replay."""

SAMPLING = ("elite_sampling", "attentive_sampling")
SAMPLED_AS = {None: "standard", "elite_sampling": "elite", "attentive_sampling": "attentive"}
"""`sample_strategy` of a custom replay -> the type with that sampling."""

ANNEALED = ("dist_function", "p", "lambda_batch_multiplier", "annealing_factor")
STRATEGY_KEYS: dict[str, tuple[str, ...]] = {
    "elite_sampling": (*ANNEALED, "elite_sampling_strategy"),
    "attentive_sampling": ANNEALED,
    "elite_insertion": ("dist_function", "p", "elite_batch_size"),
}


def types() -> dict[str, tuple[str, ...]]:
    """Type -> its own keys, without those of every replay and those of its strategies. The registry may have grown."""
    return {"custom": CUSTOM, **{name: kind.keys for name, kind in REPLAYS.items()}}


def known_keys() -> set[str]:
    """Returns every key that some replay takes."""
    return {*ALWAYS, *SIZES, *(key for keys in (*types().values(), *STRATEGY_KEYS.values()) for key in keys)}


def parse_replay_parameters(text: str) -> tuple[ReplayConfig, ...]:
    """Returns the replays of a JSON list of objects.

    Each object has at least type, sample_ratio, and one of capacity (trajectories), steps or memory (a size); a circular replay
    computes its capacity from its slots. Raises ValueError in one line with what was wanted and what came.
    """
    try:
        entries = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:  # not JSON, a number with thousands of digits, too many brackets
        raise ValueError(
            f"replay_parameters: wanted a JSON list of objects, got {_short(text)} ({_short(str(error))})"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"replay_parameters: wanted a JSON list with at least one replay, got {_short(text)}")
    replays = tuple(_parse_entry(f"replay_parameters[{index}]", entry) for index, entry in enumerate(entries))
    total = sum(replay.sample_ratio for replay in replays)
    if abs(total - 1) > RATIO_TOLERANCE:
        raise ValueError(f"replay_parameters: wanted sample_ratio values that sum to 1, got a sum of {total:g}")
    return replays


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_short(repr(twice))} occurs twice in one object")
    return entry


def needs_features(configs: Sequence[ReplayConfig]) -> bool:
    """Returns whether trajectories must contain the features of the policy that acted."""
    return any(config.needs_features for config in configs)


def needs_encode(configs: Sequence[ReplayConfig]) -> bool:
    """Returns whether a replay asks the learner to encode stored trajectories with the current network."""
    return any(config.needs_encode for config in configs)


def _parse_entry(where: str, entry: object) -> ReplayConfig:
    if not isinstance(entry, dict):
        raise ValueError(
            f"{where}: wanted an object with type, sample_ratio and capacity, steps or memory, got {_short(repr(entry))}"
        )
    if unknown := sorted(set(entry) - known_keys()):
        known = ", ".join(sorted(_taken_keys(entry)))
        raise ValueError(f"{where}: wanted known keys ({known}), got {_short(repr(unknown[0]))}")
    if missing := sorted(set(ALWAYS) - set(entry)):
        raise ValueError(f"{where}: wanted the key {missing[0]!r}, got none")
    if entry["type"] != "circular" and len(named := set(SIZES) & set(entry)) != 1:
        got = listed(sorted(named), "and") if named else "none"
        raise ValueError(f"{where}: wanted either capacity, steps or memory, got {got}")
    values = {key: _parse_value(f"{where}: wanted {key}", key, value) for key, value in entry.items()}
    _check_combination(where, values)
    if values["type"] == "custom":
        values["type"] = SAMPLED_AS[values.pop("sample_strategy", None)]
    return ReplayConfig(**{"capacity": 0, **values})


def _parse_value(wanted: str, key: str, value: Any) -> Any:
    """Returns one value as ReplayConfig holds it. `wanted` is the beginning of an error line. Raises ValueError."""
    if key == "memory":
        try:
            return parse_size(value if isinstance(value, str) else "")
        except ValueError as error:
            raise ValueError(f"{wanted} as {error}, got {_short(repr(value))}") from None
    field = settings_of(ReplayConfig).get(key)
    if names := _names(key) if field is None else field.choices():
        return _parse_name(wanted, names, value, numbered=key == "elite_sampling_strategy")
    assert field is not None
    if field.setting.pattern:
        if not isinstance(value, str) or not re.fullmatch(field.setting.pattern, value):
            raise ValueError(f"{wanted} as {field.wanted()}, got {_short(repr(value))}")
        return value
    is_bool = isinstance(value, bool)
    if field.type is bool:
        if not is_bool:
            raise ValueError(f"{wanted} as true or false, got {_short(repr(value))}")
        return value
    number = isinstance(value, int if field.type is int else int | float) and not is_bool
    if not number or not field.setting.low <= value <= field.setting.high:
        raise ValueError(f"{wanted} as {field.wanted()}, got {_short(repr(value))}")
    return field.type(value)


def _parse_name(wanted: str, names: Sequence[str], value: object, *, numbered: bool) -> str:
    """Returns the one of `names` that `value` is. numbered: strategies may be given by their numbers, from 1."""
    if numbered and type(value) is int and 1 <= value <= len(names):
        return f"strategy{value}"
    if not isinstance(value, str) or value not in names:
        also = f", or its number 1 to {len(names)}" if numbered else ""
        raise ValueError(f"{wanted} {listed(names)}{also}, got {_short(repr(value))}")
    return value


def _names(key: str) -> Sequence[str]:
    """Returns the values of a key that is no setting of `ReplayConfig`."""
    return {"type": sorted(types()), "sample_strategy": SAMPLING, "insert_strategy": INSERTIONS}[key]


def _check_combination(where: str, values: dict[str, Any]) -> None:
    """Refuse keys that this replay would never read. Raises ValueError."""
    if values["type"] == "custom" and not {"sample_strategy", "insert_strategy"} & set(values):
        raise ValueError(f"{where}: wanted sample_strategy or insert_strategy in a custom replay, got neither")
    taken = _taken_keys(values)
    for key in sorted(set(values) - taken):
        raise ValueError(f"{where}: wanted keys of this {values['type']} replay ({', '.join(sorted(taken))}), got {key}")
    if "p" in values and values.get("dist_function", ReplayConfig.dist_function) != "ln_norm":
        raise ValueError(f"{where}: wanted p only with dist_function ln_norm, got it with {values['dist_function']}")
    if values.get("hindsight"):
        # Later steps of an episode are found in trajectories that follow each other, and read one by one.
        for key, wanted in (("retention", "fifo"), ("device", "cpu")):
            if values.get(key, wanted) != wanted:
                raise ValueError(f"{where}: wanted {key} {wanted} with hindsight, got {values[key]}")
    elif "reward_function" in values:
        raise ValueError(f"{where}: wanted reward_function only with hindsight, got it without")


def _taken_keys(entry: dict[str, Any]) -> set[str]:
    """Returns the keys that a replay with this type and these strategies takes. Invalid types and strategies add none."""
    kind = entry.get("type")
    sizes = () if kind == "circular" else SIZES  # its slots are its size
    keys = {*ALWAYS, *sizes, *(types().get(kind, ()) if isinstance(kind, str) else ())}
    named = [entry.get(key) for key in ("sample_strategy", "insert_strategy") if key in keys]
    for strategy in (*named, f"{kind}_sampling" if kind in ("elite", "attentive") else None):
        if isinstance(strategy, str):
            keys |= set(STRATEGY_KEYS.get(strategy, ()))
    return keys


def _short(text: str) -> str:
    line = " ".join(text[:1000].split())
    return line if len(line) <= 80 else line[:77] + "..."
