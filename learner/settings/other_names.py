"""Other names of settings: our earlier ones, and those of elite_buffer_vtrace and of other libraries.

A command of elite_buffer_vtrace is understood as a whole. Its flags set what they meant there, where this program has the same
thing. Those that would have no effect are accepted, with a line that gives the reason. CHANGELOG.md lists what differs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from replay.parameters import STRATEGY_KEYS
from setting import AUTO, Setting, SettingField

RENAMED = {
    # Earlier names of this program, which elite_buffer_vtrace has too.
    "r_f_steps": "unroll_length",
    "load_model_url": "load",
    "load_optimizer_save": "load_optimizer",
    "avg_buff_size": "return_window",
    "training_fill_in_factor": "replay_fill_fraction",
    "save_model_period": "checkpoint_period",
    "use_replay_compression": "compress_replay",
    # An earlier name of this program alone.
    "distributional": "return_distribution",
    # elite_buffer_vtrace: its c clipped the policy gradient, its rho the temporal differences.
    "c_const": "pg_rho_bar",
    "rho_const": "rho_bar",
    "learner_thread_count": "learner_threads",
    # Its earlier versions.
    "load_model_uri": "load",
    "baseline_loss_coef": "value_loss_weight",
    "entropy_loss_coef": "entropy_loss_weight",
    "use_state_compression": "compress_replay",
    # Other libraries.
    "max_grad_norm": "gradient_clip_by_norm_threshold",
    "env_id": "env",
    "learning_rate": "lr",
    "total_timesteps": "environment_max_steps",
    "resume": "load",
}
"""Other name -> the name of the setting here. In flags, dashes may stand in place of underscores."""

RESUME = "resume"
"""The flag that names a run and means --op_mode=train_w_load too."""


def _foreign(name: str, kind: type, default: Any, text: str, choices: tuple[str, ...] = ()) -> SettingField:
    return SettingField(name, kind, default, Setting(text, choices=choices))


_OF_WORKERS = "workers write into shared memory and wait for room there, so nothing is queued or discarded"
_OF_ENVIRONMENT = "the environment itself says so"
_OF_CACHE = "--prepared_batches is the number of batches that are prepared ahead, by one thread"
_OF_CONSOLE = "--verbosity says how much is printed, --log_period how often"

TRANSLATED = {
    field.name: field
    for field in (
        _foreign("multiprocessing_backend", str, "ray", "ray: --worker_kind=ray.", ("ray", "python_native")),
        _foreign("caching", bool, True, "False: --prepared_batches=0."),
        _foreign("cache_output_buffer_size", int, 3, "--prepared_batches, unless --caching=False."),
        _foreign("basic_verbose", bool, True, "False: --verbosity=0."),
        _foreign("use_additional_scaling_FC_layer", bool, True, "False: the layer of --feature_out_layer_size."),
        _foreign("feature_out_layer_size", int, 512, "Units of its network's last layer."),
    )
}
"""Flags of elite_buffer_vtrace that set something else here, with their defaults there. `translate` says what."""

WITHOUT_EFFECT = {
    field.name: field
    for field in (
        _foreign("debug", bool, False, "a failure names its cause, and --verbosity=2 shows where"),
        _foreign("actions_count", int, 4, _OF_ENVIRONMENT),
        _foreign("observation_shape", str, "(4, 84, 84)", _OF_ENVIRONMENT),
        _foreign("shared_queue_size", int, 4, _OF_WORKERS),
        _foreign("replay_writer_queue_size", int, 1, _OF_WORKERS),
        _foreign("discarding_strategy", str, "keep_latest", _OF_WORKERS, ("keep_latest", "keep_oldest", "alternating")),
        _foreign("lz4_compression_level", int, 0, "--compress_replay has one level, the fast one"),
        _foreign("caching_threads", int, 1, _OF_CACHE),
        _foreign("cache_sample_size", int, 1, _OF_CACHE),
        _foreign("verbose_worker_out_int", int, 50, _OF_CONSOLE),
        _foreign("verbose_learner_out_int", int, 250, _OF_CONSOLE),
        _foreign("worker_verbose", bool, False, _OF_CONSOLE),
        _foreign("background_save", bool, False, "metrics are written while the run trains, a row every --log_period seconds"),
        _foreign("lr_scheduler_steps", int, 10000, "the learning rate moves to --lr_end_value in a line, over the whole run"),
    )
}
"""Flags of elite_buffer_vtrace that change nothing here, with their defaults there and the reason."""

FOREIGN = {**TRANSLATED, **WITHOUT_EFFECT}

CONVOLUTIONS = "64x3x3,64x3x2,128x3x2"
"""The convolutions of elite_buffer_vtrace's network, as `--conv` writes them."""

RENAMED_KEYS = {"alfa_annealing_factor": "annealing_factor"}
"""Other key of an object of `--replay_parameters` -> its name here."""
WHOLE_KEYS, NUMBER_KEYS = ("capacity", "elite_batch_size"), ("sample_ratio", "p", "lambda_batch_multiplier", "annealing_factor")
STRATEGIES = ("sample_strategy", "insert_strategy")
CUSTOM_KEYS = {key for keys in STRATEGY_KEYS.values() for key in keys}
"""Keys that any custom replay of elite_buffer_vtrace took, whether its strategies read them or not."""


def rename_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under the names they have here. Raises ValueError if two names of a setting differ in value."""
    renamed = {name: value for name, value in settings.items() if name not in RENAMED}
    for old, name in RENAMED.items():
        if old in settings and renamed.setdefault(name, settings[old]) != settings[old]:
            raise ValueError(f"{name}: wanted one value, got {renamed[name]!r} and, under the name {old}, {settings[old]!r}")
    if isinstance(replays := renamed.get("replay_parameters"), str):
        renamed["replay_parameters"] = rename_replays(replays)[0]
    return renamed


def translate(foreign: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The given settings with those that flags of `FOREIGN` mean, and a line for each that has no effect.

    A setting that is given by its own name keeps its value. Raises ValueError for a value that the flag does not take.

    Args:
        foreign: values of flags of `FOREIGN` by name.
        given: settings under the names they have here.
    """
    for name, value in foreign.items():
        FOREIGN[name].check(value)
    notes = [f"{name} has no effect: {WITHOUT_EFFECT[name].setting.help}" for name in foreign if name in WITHOUT_EFFECT]
    found: dict[str, Any] = {}
    for meant, reasons in (_workers(foreign, given), _batches(foreign, given), _last_layer(foreign)):
        found, notes = found | meant, notes + reasons
    if "basic_verbose" in foreign:
        found["verbosity"] = int(foreign["basic_verbose"])
    return {**found, **given}, notes


Meaning = tuple[dict[str, Any], list[str]]


def _workers(foreign: Mapping[str, Any], given: Mapping[str, Any]) -> Meaning:
    name = "multiprocessing_backend"
    if name not in foreign:
        return {}, []
    if foreign[name] != "ray":
        return {"worker_kind": AUTO}, []
    if given.get("reproducible"):
        return {}, [f"{name} has no effect: a reproducible run is one process"]
    if find_spec("ray") is None:
        return {}, [f"{name} has no effect: Ray is not installed (requirements-ray.txt), so workers are processes"]
    return {"worker_kind": "ray"}, []


def _batches(foreign: Mapping[str, Any], given: Mapping[str, Any]) -> Meaning:
    if foreign.get("caching") is False:
        return {"prepared_batches": 0}, []
    name = "cache_output_buffer_size"
    if name in foreign and given.get("reproducible"):
        return {}, [f"{name} has no effect: a reproducible run prepares no batch ahead"]
    return ({"prepared_batches": foreign[name]} if name in foreign else {}), []


def _last_layer(foreign: Mapping[str, Any]) -> Meaning:
    """Its network had a layer of this size in place of 512 units, or a random projection for the distances of replays alone."""
    name, is_projection = "feature_out_layer_size", foreign.get("use_additional_scaling_FC_layer", True)
    if is_projection:
        reason = "replays compare the features of the network's last hidden layer, without a projection"
        return {}, [f"{each} has no effect: {reason}" for each in (name, "use_additional_scaling_FC_layer") if each in foreign]
    size = foreign.get(name, FOREIGN[name].default)
    return {"network": "conv", "conv": CONVOLUTIONS, "hidden_sizes": str(size)}, []


def rename_replays(text: str) -> tuple[str, list[str]]:
    """`--replay_parameters` as this program writes it, and a line for each key that is left out because it has no effect.

    Python's literals are read too, and names and keys in capitals. A text that cannot be read stays as it is. Raises ValueError
    for an object that has a key by two names.
    """
    entries = _read_list(text)
    if not entries or not all(isinstance(entry, dict) and all(isinstance(key, str) for key in entry) for entry in entries):
        return text, []
    renamed, notes = [], []
    for index, entry in enumerate(entries):
        replay, lines = _rename_replay(f"replay_parameters[{index}]", entry)
        renamed.append(replay)
        notes += lines
    return (text if renamed == entries and _is_json(text) else json.dumps(renamed)), notes


def _read_list(text: str) -> list[Any]:
    """The list that a text of JSON or of Python writes; empty if it is none, or if an object has a key twice."""
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(text, object_pairs_hook=_once)
        return read if isinstance(read, list) else []
    if _is_json(text):
        return []
    errors = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
    with contextlib.suppress(*errors), warnings.catch_warnings(action="ignore"):
        read = ast.literal_eval(text.strip())
        json.dumps(read, allow_nan=False)  # sets and bytes are no JSON
        return list(read) if isinstance(read, list | tuple) else []
    return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(entry := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return entry


def _rename_replay(where: str, entry: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    replay: dict[str, Any] = {}
    for given, value in entry.items():
        key = RENAMED_KEYS.get(given.lower(), given.lower())
        if key in replay:
            other = next(each for each in entry if RENAMED_KEYS.get(each.lower(), each.lower()) == key)
            raise ValueError(f"{where}: wanted {key} once, got both {other} and {given}")
        replay[key] = _plain_value(key, value)
    if replay.get("type") != "custom":
        return replay, []
    if not set(STRATEGIES) & set(replay):
        replay["type"] = "standard"
    taken = {key for name in STRATEGIES for key in STRATEGY_KEYS.get(str(replay.get(name)), ())}
    if replay.get("dist_function", "ln_norm") != "ln_norm":
        taken -= {"p"}
    left_out = [key for key in replay if key in CUSTOM_KEYS - taken]
    notes = [f"{where}: {key} has no effect in this {replay['type']} replay" for key in left_out]
    return {key: value for key, value in replay.items() if key not in left_out}, notes


def _plain_value(key: str, value: Any) -> Any:
    """The value of a key as JSON writes it here: a name in small letters, a number as a number."""
    if key in WHOLE_KEYS and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or key in ("memory", "reward_function"):
        return value
    if key in (*WHOLE_KEYS, *NUMBER_KEYS):
        with contextlib.suppress(ValueError):
            return int(value) if key in WHOLE_KEYS else float(value)
        return value
    return value.lower()
