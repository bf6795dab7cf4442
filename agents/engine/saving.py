"""An agent's state in a checkpoint: weights, the optimiser's moments, running moments, target networks and further numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agents.networks.statistics import RunningMoments

if TYPE_CHECKING:
    from agents.engine.stepper import Stepper

NETWORK = "network"
"""Name of the acting network among an agent's modules, and of its optimiser."""
OPTIMIZER_STEPS = "optimizer_steps"
"""Name of the count of optimiser steps among an agent's numbers."""
_OF_ADAM = {"step", "exp_avg", "exp_avg_sq"}
MOMENTS = {"rmsprop": {"step", "square_avg"}, "adam": _OF_ADAM, "radam": _OF_ADAM}
"""Name of an optimiser -> names of its moments."""


def state_of(stepper: Stepper) -> dict[str, Any]:
    """The state of a stepper's agent. See `Agent.state_dict`."""
    stepper.guard.settle()
    moments = {name: running.state_dict() for name, running in moments_of(stepper).items()}
    return {
        "modules": {name: module.state_dict() for name, module in _modules(stepper).items()},
        "optimizers": {NETWORK: _optimizer_state(stepper.optimizer)} if stepper.optimizer else {},
        "numbers": moments | _numbers(stepper),
    }


def check_state(stepper: Stepper, state: dict[str, Any], *, load_optimizer: bool) -> None:
    """Raise ValueError if `load_state` could not load this. See `Agent.check_state_dict`."""
    for name, module in _modules(stepper).items():
        if name in state["modules"]:
            _check_weights(module.state_dict(), state["modules"][name])
        elif name not in stepper.target_networks or not stepper.target_networks[name].optional:
            wanted, got = (" and ".join(names) for names in (stepper.modules, state["modules"]))
            raise ValueError(f"wanted the weights of {wanted}, got those of {got}")
    numbers = state.get("numbers", {})
    for name, moments in moments_of(stepper).items():
        if name in numbers:
            moments.check_state_dict(numbers[name])
    for name, own in _numbers(stepper).items():
        if name in numbers:
            _check_weights(own, numbers[name])
    if load_optimizer and stepper.optimizer:
        moments = state["optimizers"][NETWORK]["state"]
        _check_moments(moments, stepper.optimizer, stepper.config.optimizer, some=stepper.steps_some)


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
            stepper.target_networks[name].reset()
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
        _lay_out_moments(stepper.optimizer)


def moments_of(stepper: Stepper) -> dict[str, RunningMoments]:
    """The running moments of observations and rewards, by their names in a checkpoint."""
    found: dict[str, RunningMoments] = dict(stepper.intrinsic.moments) if stepper.intrinsic else {}
    if stepper.observation_moments:
        found["observations"] = stepper.observation_moments
    if stepper.reward_scale:
        found["rewards"] = stepper.reward_scale.moments
    return found


def _modules(stepper: Stepper) -> dict[str, nn.Module]:
    return {**stepper.modules, **{name: target.network for name, target in stepper.target_networks.items()}}


def _numbers(stepper: Stepper) -> dict[str, dict[str, Tensor]]:
    """The count of steps if an update has several, the ages of target networks, and what the agent adds. All are live."""
    steps = {OPTIMIZER_STEPS: {"count": torch.tensor(stepper.guard.steps)}} if stepper.agent.several_steps else {}
    ages = {name: {"age": target.age} for name, target in stepper.target_networks.items()}
    return {**steps, **ages, **{name: dict(tensors) for name, tensors in stepper.extra_state.items()}}


def _check_moments(
    moments: Mapping[int, Mapping[str, Any]], optimizer: torch.optim.Optimizer, name: str, *, some: bool = False
) -> None:
    """Raise ValueError unless there are moments of every parameter or, before the first update, of none.

    The optimiser checks nothing itself.

    Args:
        moments: number of a parameter -> its moments by name.
        optimizer: whose parameters they are.
        name: of the optimiser, a key of `MOMENTS`.
        some: whether some parameters may have none yet.
    """
    parameters = dict(enumerate(weights for group in optimizer.param_groups for weights in group["params"]))
    missing = parameters.keys() - moments.keys()
    if moments.keys() - parameters.keys() or (moments and missing and not some):
        raise ValueError(f"wanted moments of {len(parameters)} parameters, got {len(moments)}")
    for index, of_one in moments.items():
        _check_moments_of_one(of_one, parameters[index], index, MOMENTS[name])


def _check_moments_of_one(moments: Mapping[str, Any], parameter: Tensor, index: int, names: set[str]) -> None:
    if moments.keys() != names:
        raise ValueError(f"wanted {', '.join(sorted(names))} of each parameter, got {', '.join(sorted(moments))}")
    for name, value in moments.items():
        shape = () if name == "step" else parameter.shape
        if not isinstance(value, Tensor) or value.shape != shape or value.dtype != torch.float32:
            raise ValueError(f"wanted {name} as float32 {list(shape)} for parameter {index}, got another")


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state for a checkpoint. Its tensors are live.

    A checkpoint may hold no object twice, and PyTorch gives all groups of parameters the same pair of settings.
    """
    state = optimizer.state_dict()
    groups = [
        {name: _copied(value) if isinstance(value, tuple) else value for name, value in group.items()}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


def _copied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """An equal tuple that is another object."""
    return tuple(value for value in values)


def _lay_out_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give moments the memory layout of their weights on this device. Otherwise each step would loop over the tensors."""
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if moment.shape == parameter.shape and moment.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter).copy_(moment)


def _check_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and dtypes. Raises ValueError that names the first tensor that differs, with both."""
    wanted, got = ({name: _described(tensor) for name, tensor in tensors.items()} for tensors in (own, state))
    for name in [*wanted, *got]:
        if wanted.get(name) != got.get(name):
            raise ValueError(f"wanted {name} as {wanted.get(name, 'absent')}, got {got.get(name, 'none')}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
