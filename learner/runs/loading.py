"""What `--load` names, loaded and checked against what this command asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agents import AGENTS
from learner.runs.checkpoint import Checkpoint, load_checkpoint, load_replay
from learner.runs.directory import BEST, find_checkpoints
from learner.settings.check import check_taken
from learner.settings.config import Config, Settings, make_network_shapes
from learner.settings.schema import COMMAND_SETTINGS, DEFAULTS, STORED_SETTINGS, agent_of, default_settings
from replay import parse_replay_parameters
from wrappers import make_spec


def load_newest(url: str, results: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The newest good checkpoint that `url` names, its file, and a line for each damaged one that was passed over.

    Where the newest is damaged the best one is looked at too: it may be of more updates than those that are left. Raises
    ValueError with one line; a damaged file that is named itself is an error.
    """
    bad: list[str] = []
    found: tuple[Path, Checkpoint] | None = None
    for path in find_checkpoints(url, results):
        if found and not (bad and path.stem == BEST):
            continue
        try:
            checkpoint = load_checkpoint(path)
        except ValueError as error:
            bad.append(str(error))
            continue
        if found is None or checkpoint.counters.updates > found[1].counters.updates:
            found = path, checkpoint
    if found:
        return *found, [f"passed over {reason}" for reason in bad]
    if len(bad) == 1:
        raise ValueError(bad[0])
    raise ValueError(f"load: wanted one good checkpoint in {url!r}, got {len(bad)} bad ones, such as {bad[0]}")


def merge_settings(given: Settings, saved: Settings) -> tuple[Settings, list[str]]:
    """All settings of a run: the given ones, else the checkpoint's, else the defaults of its agent.

    Also returns a line for each setting of the checkpoint that is overridden, and one for those that are unknown and left out.
    Raises ValueError if a given setting does not belong to the run.

    Args:
        given: settings of the command, and of a preset that it names.
        saved: the checkpoint's settings; empty for a new run.
    """
    agent = agent_of(saved or given)
    if given.get("agent", agent) != agent:
        raise ValueError(f"agent: wanted {agent} as in the checkpoint, got {given['agent']}")
    defaults = default_settings(agent)
    kept = {name: value for name, value in saved.items() if name in defaults and name not in COMMAND_SETTINGS}
    merged = {**defaults, **kept, **given}
    check_taken(given, merged)
    notes = [
        f"{name}={value} (overrides the checkpoint's {kept[name]})"
        for name, value in given.items()
        if name in kept and kept[name] != value
    ]
    if unknown := sorted(set(saved) - set(defaults)):
        notes.append(f"left out settings of the checkpoint that this program does not know: {', '.join(unknown)}")
    return merged, notes


def check_fit(config: Config, checkpoint: Checkpoint, *, load_optimizer: bool) -> None:
    """Refuse a checkpoint of other actions, another network or, where it is to be loaded, another optimiser. ValueError."""
    spec = make_spec(config.env)
    network = make_network_shapes(config, spec)
    if checkpoint.spec["action_count"] != spec.action_count:
        raise ValueError(
            f"load: wanted a checkpoint for the {spec.action_count} actions of {config.env.env}, got one for the "
            f"{checkpoint.spec['action_count']} actions of {checkpoint.spec['env']}"
        )
    wanted = {name: (tuple(value.shape), value.dtype) for name, value in network.state_dict().items()}
    got = {name: (tuple(value.shape), value.dtype) for name, value in checkpoint.agent["network"].items()}
    if wanted != got:
        raise ValueError(
            f"load: wanted weights of the network {config.network} for observations {list(spec.observation_shape)}, "
            f"got a checkpoint of {checkpoint.settings.get('network')} for {checkpoint.spec['frame_shape']} frames"
        )
    optimizer = config.settings.get("optimizer")
    saved = checkpoint.settings.get("optimizer", optimizer)
    if load_optimizer and saved != optimizer:
        raise ValueError(
            f"optimizer: wanted {saved} as in the checkpoint, got {optimizer}; its state is left out with --noload_optimizer"
        )
    try:
        AGENTS[config.agent](config.agent_settings, network).check_state_dict(checkpoint.agent, load_optimizer=load_optimizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"load: wanted a state of the agent that fits, got another ({reason})") from None


def load_fitting_replay(path: Path, checkpoint: Checkpoint, config: Config) -> dict[str, Any]:
    """What was saved beside a checkpoint, for a run with the same replays. Raises ValueError with the reason there is none."""
    if checkpoint.replay is None:
        raise ValueError("saved without --save_replay")
    for name in STORED_SETTINGS:
        before, now = checkpoint.settings.get(name, DEFAULTS[name]), config.settings[name]
        if before != now and not (name == "replay_parameters" and _keep_the_same(before, now)):
            raise ValueError(f"{name} was {before}")
    return load_replay(path, checkpoint)


def _keep_the_same(before: Any, now: Any) -> bool:
    """Whether two mixtures are the same but for the device that keeps the frames."""
    first, second = ([replace(each, device="cpu") for each in parse_replay_parameters(str(text))] for text in (before, now))
    return first == second


def check_finite(checkpoint: Checkpoint, path: Path) -> None:
    """Refuse to go on from weights that have diverged. Raises ValueError."""
    if not all(torch.isfinite(value).all() for value in checkpoint.agent["network"].values()):
        raise ValueError(f"load: wanted finite weights, got a checkpoint whose training diverged: {path}")
