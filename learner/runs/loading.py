"""Loads the checkpoint that `--load` names, and checks that it fits the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agents.distributions import make_distribution
from agents.networks.q_network import C51, HL_GAUSS
from learner.building import make_agent, make_network_shapes
from learner.plan import Plan
from learner.runs.checkpoint import ACTING_MODULE, Checkpoint, load_checkpoint, load_replay
from learner.runs.directory import BEST, find_checkpoints
from learner.settings.check import check_taken
from learner.settings.config import Config, Settings
from learner.settings.schema import BUDGET_SETTINGS, COMMAND_SETTINGS, DEFAULTS, STORED_SETTINGS, agent_of, default_settings
from replay import parse_replay_parameters
from replay.signature import check_saved_mixture
from setting import AUTO
from wrappers import usual_settings
from wrappers.spaces import ActionSpace, action_space, same_actions
from wrappers.spec import tasks_of


def load_newest(url: str, results: Path) -> tuple[Path, Checkpoint, list[str]]:
    """Load the newest sound checkpoint that `url` names.

    If the newest is damaged, the best one is considered too: it may be of a later update than the others.

    Returns:
        its file, the checkpoint, and a line for each damaged one that was skipped.

    Raises ValueError with one line, also if `url` names one damaged file itself.
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
        return *found, [f"skipped {reason}" for reason in bad]
    if len(bad) == 1:
        raise ValueError(bad[0])
    raise ValueError(f"load: wanted one sound checkpoint in {url!r}, got {len(bad)} unusable ones, such as {bad[0]}")


def merge_settings(given: Settings, saved: Settings) -> tuple[Settings, list[str]]:
    """All settings of a run: the given ones, else the checkpoint's, else the defaults of its environment's family and agent.

    Also returns a line for each default of the family that differs from the usual one, one for each setting of the checkpoint
    that is overridden, except the number of steps, and one for those that are unknown and left out. Raises ValueError if a
    given setting does not belong to the run.

    Args:
        given: settings of the command, and of a preset that it names.
        saved: the checkpoint's settings; empty for a new run.
    """
    before = agent_of(saved or given)
    agent = given.get("agent", before)
    has_moved = ":" in agent and agent.rpartition(":")[2] == before.rpartition(":")[2]  # the file of a user's class
    if agent != before and not has_moved:
        raise ValueError(f"agent: wanted {before} as in the checkpoint, got {agent}")
    defaults = default_settings(agent)
    kept = {name: value for name, value in saved.items() if name in defaults and name not in COMMAND_SETTINGS}
    env = str(given.get("env", kept.get("env", defaults["env"])))
    _check_same_tasks(env, str(kept.get("env", env)))
    usual = {name: value for name, value in usual_settings(env).items() if name in defaults}
    of_family = {name: value for name, value in usual.items() if name not in kept and name not in given}
    merged = {**defaults, **of_family, **kept, **given}
    check_taken(given, merged)
    notes = [f"{name}={value} (usual for {env})" for name, value in of_family.items()]
    notes += [
        f"{name}={value} (overrides the checkpoint's {kept[name]})"
        for name, value in given.items()
        if name in kept and kept[name] != value and name not in BUDGET_SETTINGS
    ]
    if unknown := sorted(set(saved) - set(defaults)):
        notes.append(f"left out settings of the checkpoint that this program does not know: {', '.join(unknown)}")
    return merged, notes


def _check_same_tasks(env: str, saved: str) -> None:
    """Raise ValueError if a policy of several environments meets others, or another order: it has values for each."""
    now, before = tasks_of(env), tasks_of(saved)
    if now != before and len(now) + len(before) > 2:
        raise ValueError(f"env: wanted {saved} as in the checkpoint, since one policy of several keeps them, got {env}")


def check_fit(plan: Plan, checkpoint: Checkpoint, *, load_optimizer: bool) -> None:
    """Check that a checkpoint has the command's actions and network and, if `load_optimizer`, its optimiser.

    The agent compares weights and moments (`Agent.check_state_dict`). Raises ValueError with one line.
    """
    config, spec = plan.config, plan.spec
    saved_action = action_space(checkpoint.spec["action"])
    if not same_actions(saved_action, spec.action):
        raise ValueError(
            f"load: wanted a checkpoint for {spec.action.summary()} of {config.env.env}, got one for "
            f"{saved_action.summary()} of {checkpoint.spec['env']}"
        )
    _check_same_distribution(config, checkpoint, spec.action)
    _check_same_function(config, checkpoint)
    optimizer = config.settings.get("optimizer")
    saved = checkpoint.settings.get("optimizer", optimizer)
    if load_optimizer and saved != optimizer:
        raise ValueError(
            f"optimizer: wanted {saved} as in the checkpoint, got {optimizer}; its state is left out with --noload_optimizer"
        )
    try:
        # A file from anywhere may hold any tensors and numbers here, so it may raise any of these errors.
        make_agent(config, make_network_shapes(plan.network)).check_state_dict(checkpoint.agent, load_optimizer=load_optimizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"load: wanted a checkpoint for the network {config.network} and {config.env.env}, got one of "
            f"{checkpoint.settings.get('network')} and {checkpoint.spec['env']} that does not fit: {reason}"
        ) from None


def _check_same_distribution(config: Config, checkpoint: Checkpoint, action: ActionSpace) -> None:
    """Raise ValueError for another distribution over actions. Its weights could have the same shapes."""
    now, saved = config.network_settings.action_distribution, checkpoint.settings.get("action_distribution", AUTO)
    if make_distribution(action, now) != make_distribution(action, saved):
        raise ValueError(f"action_distribution: wanted {saved} as in the checkpoint, got {now}")


def _check_same_function(config: Config, checkpoint: Checkpoint) -> None:
    """Raise ValueError for other settings that change what the weights mean, or which ones there are."""
    names = ["activation", "conv", "return_distribution", "value_rescaling", "intrinsic", "popart", "core_inputs", "task_input"]
    if config.settings.get("return_distribution") in (C51, HL_GAUSS):
        names += ["v_min", "v_max"]
    for name in names:
        if name not in config.settings:  # the agent does not take it, though an earlier version's may have
            continue
        now = config.settings[name]
        if (saved := checkpoint.settings.get(name, now)) != now:
            raise ValueError(f"{name}: wanted {saved} as in the checkpoint, got {now}")


def load_fitting_replay(path: Path, checkpoint: Checkpoint, plan: Plan) -> dict[str, Any]:
    """The replay state saved with a checkpoint. Raises ValueError with the reason if there is none that fits these settings."""
    if checkpoint.replay is None:
        raise ValueError("the checkpoint was saved without --save_replay, or its replays could not be saved")
    for name in STORED_SETTINGS:
        before, now = checkpoint.settings.get(name, DEFAULTS[name]), plan.config.settings[name]
        if before != now and not (name == "replay_parameters" and _keep_the_same(before, now)):
            raise ValueError(f"{name} was {before}")
    state = load_replay(path, checkpoint)
    check_saved_mixture(state.get("mixture", {}), plan.contract)
    return state


def _keep_the_same(before: Any, now: Any) -> bool:
    """Whether two `replay_parameters` describe the same replays. The device that holds the frames may differ."""
    first, second = ([replace(each, device="cpu") for each in parse_replay_parameters(str(text))] for text in (before, now))
    return first == second


def check_finite(checkpoint: Checkpoint, path: Path) -> None:
    """Raise ValueError if weights of the checkpoint are not finite: training had diverged and would not recover."""
    if not all(torch.isfinite(value).all() for value in checkpoint.agent["modules"][ACTING_MODULE].values()):
        raise ValueError(f"load: wanted finite weights, got a checkpoint whose training diverged: {path}")
