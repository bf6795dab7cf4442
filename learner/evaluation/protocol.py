"""The evaluation protocol: all settings besides the policy on which a score depends.

Every checkpoint and result carries the protocol as data, and it is printed with every score. Scores of different protocols
are not comparable. Evaluation plays whole games, whatever `episodic_life` was in training; all other settings stay as trained.

A protocol can be chosen by name (`--protocol=classic`). It sets what the protocol prescribes and refuses other values of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from setting import listed
from wrappers import EnvConfig, EnvSpec, describe_env
from wrappers.atari_protocols import PROTOCOLS as ATARI_PROTOCOLS
from wrappers.spaces import ActionSpace, Discrete, action_space, leaves_to_json

AS_SET = "as_set"  # value of the setting `protocol`: the other settings stand for themselves
OWN = "own"  # name of a protocol that is none of the published ones

PROTOCOLS: Mapping[str, Mapping[str, Any]] = {**ATARI_PROTOCOLS}
"""Named protocols of all families: name -> the settings that each prescribes."""


def evaluation_protocol(config: EnvConfig, spec: EnvSpec, greedy: bool, epsilon: float | None = None) -> dict[str, Any]:
    """The protocol by which an agent trained on `config` is evaluated, as plain data for JSON.

    Settings that the environment's family does not read are left out. Results are compared only if this data is equal.

    Args:
        config: the environment.
        spec: its shapes and counts.
        greedy: whether the best action is taken.
        epsilon: probability of a random action, for an agent that explores by epsilon; None for one that samples.
    """
    description = describe_env(config)
    return {
        "protocol": protocol_name(config),
        "env": config.env,
        "full_games": True,
        "rewards": "raw",
        "actions": _how_actions_are_chosen(greedy, epsilon),
        **_described_actions(spec.action),
        **(_described_frames(config, spec) if description.counts_frames else _described_observations(spec)),
        **description.protocol_settings,
    }


def _how_actions_are_chosen(greedy: bool, epsilon: float | None) -> str:
    if greedy or epsilon == 0:
        return "greedy"
    return "sampled" if epsilon is None else f"epsilon-greedy ({epsilon:g})"


def _described_frames(config: EnvConfig, spec: EnvSpec) -> dict[str, Any]:
    return {
        "frame_shape": list(spec.frame_shape),
        "frames_stacked": spec.frames_stacked,
        "frame_skip": spec.frames_per_step,
        "max_episode_frames": config.max_episode_frames,
    }


def _described_observations(spec: EnvSpec) -> dict[str, Any]:
    """The parts of an observation, for environments without an emulator."""
    whole = [{"name": "observation", "shape": list(spec.frame_shape), "dtype": spec.frame_dtype}]
    return {"observations": leaves_to_json(spec.leaves) or whole, "observations_stacked": spec.frames_stacked}


def protocol_name(config: EnvConfig) -> str:
    """Name of the published protocol that the evaluation environment of `config` follows; `OWN` if it follows none.

    The values decide, not the setting `protocol`: a run with the values of `classic` is comparable however they were set.
    """
    description = describe_env(config)
    values = vars(description.evaluation_config)
    for name, prescribed in description.protocols.items():
        if all(values[key] == value for key, value in prescribed.items()):
            return name
    return OWN


def describe_protocol(config: EnvConfig, spec: EnvSpec, protocol: Mapping[str, Any]) -> str:
    """The protocol of an environment, see `evaluation_protocol`, as one printed line."""
    description = describe_env(config)
    name = f" ({protocol['protocol']} protocol)" if description.protocols else ""
    phrases = (
        "full games" if description.counts_frames else "whole episodes",
        f"{protocol['rewards']} rewards",
        f"{protocol['actions']} actions ({_actions_in_words(protocol)})",
        *(_frames_in_words(protocol, spec) if description.counts_frames else _observations_in_words(protocol)),
        *description.protocol_text,
    )
    return f"{config.env}{name}: {', '.join(phrases)}"


def _frames_in_words(protocol: Mapping[str, Any], spec: EnvSpec) -> tuple[str, ...]:
    if len(spec.frame_shape) > 1:
        height, width = spec.frame_shape[:2]
        shown: tuple[str, ...] = (f"{height}x{width} frames", f"stack of {spec.frames_stacked}")
    else:  # vectors, and leaves in packed frames
        shown = _observations_in_words(_described_observations(spec))
    return (
        *shown,
        f"frame skip {protocol['frame_skip']}",
        f"episodes of at most {protocol['max_episode_frames']:,} frames",
    )


def _observations_in_words(protocol: Mapping[str, Any]) -> tuple[str, ...]:
    leaves = [f"{leaf['name']} {'x'.join(map(str, leaf['shape']))} {leaf['dtype']}" for leaf in protocol["observations"]]
    stacked = protocol["observations_stacked"]
    return (" and ".join(leaves), *((f"stack of {stacked} observations",) if stacked > 1 else ()))


def _described_actions(action: ActionSpace) -> dict[str, Any]:
    return {"action_count": action.count} if isinstance(action, Discrete) else {"action_space": action.to_json()}


def _actions_in_words(protocol: Mapping[str, Any]) -> str:
    if "action_count" in protocol:
        return f"of {protocol['action_count']}"
    return action_space(protocol["action_space"]).summary().removeprefix("the ")


def apply_protocol(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those that `settings["protocol"]` prescribes.

    given: the settings that the user chose. They are kept even if they contradict, so that `check_protocol` can report them.
    """
    prescribed = PROTOCOLS.get(settings["protocol"], {})
    return {**settings, **{name: value for name, value in prescribed.items() if name not in given}}


def check_protocol(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting contradicts the protocol that the settings name."""
    for name, value in PROTOCOLS.get(settings["protocol"], {}).items():
        if settings[name] != value:
            raise ValueError(f"{name}: wanted {value}, which protocol={settings['protocol']} prescribes, got {settings[name]}")


def check_protocol_of_env(protocol: str, config: EnvConfig) -> None:
    """Raise ValueError if the environment's family has no protocol of this name."""
    known = (AS_SET, *describe_env(config).protocols)
    if protocol not in known:
        raise ValueError(f"protocol: wanted {listed(known)} for {config.env}, got {protocol}")


def check_same_protocol(settings: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ValueError if a resumed run would change its protocol, which would mix its evaluations.

    saved: the settings in the checkpoint; checkpoints written before there were named protocols lack the entry.
    """
    before = saved.get("protocol", AS_SET)
    if before != AS_SET and settings["protocol"] != before:
        raise ValueError(f"protocol: wanted {before}, the protocol of the resumed run, got {settings['protocol']}")
