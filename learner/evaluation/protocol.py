"""The evaluation protocol: everything beside the policy that decides what a score means.

It is stamped into every checkpoint and result and printed beside every score, because a score without it compares with
nothing. Evaluation plays whole games, whatever `episodic_life` training used; all else is as trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learner.evaluation.protocols import DECISIVE, OWN, PROTOCOLS
from wrappers import ENVIRONMENTS, EnvConfig, make_spec

ATARI = "atari"


def evaluation_env(config: EnvConfig) -> EnvConfig:
    """The environment that evaluation plays: as trained, but a lost life is no end."""
    return replace(config, episodic_life=False)


def is_atari(env_id: str) -> bool:
    """Whether the id names an Atari game."""
    return ENVIRONMENTS[ATARI].matches(env_id)


def evaluation_protocol(config: EnvConfig, greedy: bool) -> dict[str, Any]:
    """How an agent trained on `config` is evaluated, as plain data.

    Settings that an environment outside the Atari family does not read are left out.
    """
    spec = make_spec(config)
    protocol: dict[str, Any] = {
        "protocol": protocol_name(config),
        "env": config.env,
        "full_games": True,
        "rewards": "raw",
        "actions": "greedy" if greedy else "sampled",
        "action_count": spec.action_count,
        "frame_shape": list(spec.frame_shape),
        "frames_stacked": spec.frames_stacked,
        "frame_skip": spec.frames_per_step,
        "max_episode_frames": config.max_episode_frames,
    }
    if is_atari(config.env):
        fire = config.fire_reset and "FIRE" in spec.action_meanings
        protocol |= {
            "noop_threshold": config.noop_threshold,
            "fire_at_start": fire,
            "fire_after_lost_life": fire,
            "sticky_actions": config.sticky_actions,
            "action_set": "full" if config.full_action_space else "minimal",
            "colour": "grey" if config.grayscaling_frames else "RGB",
        }
    return protocol


def protocol_name(config: EnvConfig) -> str:
    """Which of `PROTOCOLS` an environment is evaluated by, whoever set it so; "own" where it is none of them."""
    if not is_atari(config.env):
        return OWN
    values = vars(evaluation_env(config))
    return next((name for name, wanted in PROTOCOLS.items() if all(values[key] == wanted[key] for key in DECISIVE)), OWN)


def describe_protocol(protocol: dict[str, Any]) -> str:
    """One line for people, out of what `evaluation_protocol` returns."""
    atari = "sticky_actions" in protocol
    parts = [*_start_of_game(protocol), f"sticky actions {protocol['sticky_actions']:g}"] if atari else []
    size = "x".join(str(length) for length in protocol["frame_shape"][:2])
    colour = f" {protocol['colour']}" if atari else ""
    action_set = f"{protocol['action_set']} action set ({protocol['action_count']})" if atari else None
    parts += [
        f"frame skip {protocol['frame_skip']}",
        f"{size}{colour}, stack of {protocol['frames_stacked']}",
        "full games (a lost life is no end)" if atari else "full games",
        f"cut at {protocol['max_episode_frames']:,} frames",
        action_set or f"{protocol['action_count']} actions",
        f"{protocol['actions']} actions",
        f"{protocol['rewards']} rewards",
    ]
    name = f" ({protocol['protocol']})" if atari else ""
    return f"{protocol['env']}{name}: {', '.join(parts)}"


def _start_of_game(protocol: dict[str, Any]) -> list[str]:
    """The emulator draws the number of no-ops below the threshold, and a FIRE at the start counts as one of them."""
    most = max(0, protocol["noop_threshold"] - 1)
    parts = [f"0 to {most} no-op frames at the start" if most else "no no-ops at the start"]
    if protocol["fire_at_start"] and protocol["fire_after_lost_life"]:
        return [*parts, "FIRE pressed at the start and after a lost life"]
    return [*parts, "no FIRE pressed"]
