"""An agent's state in a checkpoint: weights, the optimiser's moments, running moments, target networks and further numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agents.engine.optimizers import check_moments, check_weights, lay_out_moments, optimizer_state
from agents.networks.statistics import RunningMoments

if TYPE_CHECKING:
    from agents.engine.stepper import Stepper

NETWORK = "network"
"""Name of the acting network among an agent's modules, and of its optimiser."""
OPTIMIZER_STEPS = "optimizer_steps"
"""Name of the count of optimiser steps among an agent's numbers."""


def state_of(stepper: Stepper) -> dict[str, Any]:
    """The state of a stepper's agent. See `Agent.state_dict`."""
    stepper.guard.settle()
    moments = {name: running.state_dict() for name, running in moments_of(stepper).items()}
    return {
        "modules": {name: module.state_dict() for name, module in _modules(stepper).items()},
        "optimizers": {NETWORK: optimizer_state(stepper.optimizer)} if stepper.optimizer else {},
        "numbers": moments | _numbers(stepper),
    }


def check_state(stepper: Stepper, state: dict[str, Any], *, load_optimizer: bool) -> None:
    """Raise ValueError if `load_state` could not load this. See `Agent.check_state_dict`."""
    for name, module in _modules(stepper).items():
        if name in state["modules"]:
            check_weights(module.state_dict(), state["modules"][name])
        elif name not in stepper.targets or not stepper.targets[name].optional:
            wanted, got = (" and ".join(names) for names in (stepper.modules, state["modules"]))
            raise ValueError(f"wanted the weights of {wanted}, got those of {got}")
    numbers = state.get("numbers", {})
    for name, moments in moments_of(stepper).items():
        if name in numbers:
            moments.check_state_dict(numbers[name])
    for name, own in _numbers(stepper).items():
        if name in numbers:
            check_weights(own, numbers[name])
    if load_optimizer and stepper.optimizer:
        moments = state["optimizers"][NETWORK]["state"]
        check_moments(moments, stepper.optimizer, stepper.config.optimizer, some=stepper.steps_some)


def load_state(stepper: Stepper, state: dict[str, Any], *, load_optimizer: bool) -> None:
    """Load what `state_of` returned, by copying. Moments come from `state`, the optimiser's settings from the config.

    A checkpoint of other settings may lack some parts: a run may begin to scale rewards when it is resumed.
    """
    stepper.guard.settle()
    numbers = state.get("numbers", {})
    for name, module in _modules(stepper).items():
        if name in state["modules"]:
            module.load_state_dict(state["modules"][name])
        else:
            stepper.targets[name].reset()
    for name, running in moments_of(stepper).items():
        if name in numbers:
            running.load_state_dict(numbers[name])
    for name, own in _numbers(stepper).items():
        for key, tensor in own.items() if name in numbers else ():
            tensor.copy_(numbers[name][key])
    if stepper.agent.several_steps and OPTIMIZER_STEPS in numbers:
        stepper.guard.steps = int(numbers[OPTIMIZER_STEPS]["count"])
    if load_optimizer and stepper.optimizer:
        moments = state["optimizers"][NETWORK]["state"]
        stepper.optimizer.load_state_dict({**stepper.optimizer.state_dict(), "state": moments})
        lay_out_moments(stepper.optimizer)


def moments_of(stepper: Stepper) -> dict[str, RunningMoments]:
    """The running moments of observations and rewards, by their names in a checkpoint."""
    found: dict[str, RunningMoments] = {}
    if stepper.observation_moments:
        found["observations"] = stepper.observation_moments
    if stepper.reward_scale:
        found["rewards"] = stepper.reward_scale.moments
    return found


def _modules(stepper: Stepper) -> dict[str, nn.Module]:
    return {**stepper.modules, **{name: target.network for name, target in stepper.targets.items()}}


def _numbers(stepper: Stepper) -> dict[str, dict[str, Tensor]]:
    """The count of steps if an update has several, the ages of target networks, and what the agent adds. All are live."""
    steps = {OPTIMIZER_STEPS: {"count": torch.tensor(stepper.guard.steps)}} if stepper.agent.several_steps else {}
    ages = {name: {"age": target.age} for name, target in stepper.targets.items()}
    return {**steps, **ages, **{name: dict(tensors) for name, tensors in stepper.extra_state.items()}}
