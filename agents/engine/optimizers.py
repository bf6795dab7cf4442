"""Optimisers: how they are made, and their moments in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

RMSPROP_DECAY = 0.99
MOMENTS = {"rmsprop": {"step", "square_avg"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}
"""Name of an optimiser -> names of its moments."""


def make_optimizer(config: Any, modules: Iterable[nn.Module], *, graphed: bool = False) -> torch.optim.Optimizer | None:
    """The optimiser that the config names, with one group of parameters for each module; None for an agent without one.

    Args:
        config: the agent's settings.
        modules: on one device.
        graphed: whether its steps may be recorded as a CUDA graph. Then their count and the learning rate are on the device.
    """
    if not hasattr(config, "optimizer"):
        return None
    groups = [{"params": list(module.parameters())} for module in modules]
    device = groups[0]["params"][0].device
    if config.optimizer == "rmsprop":
        optimizer: torch.optim.Optimizer = _eager(torch.optim.RMSprop)(
            groups, lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True, capturable=graphed
        )
    elif config.optimizer == "adam":
        # On a CPU it is twice as fast fused, in a graph one kernel; PyTorch has that for Adam alone.
        fused = device.type == "cpu" or graphed
        optimizer = _eager(torch.optim.Adam)(
            groups, lr=0.0, eps=config.adam_eps, fused=fused, foreach=not fused, capturable=graphed
        )
    else:
        raise ValueError(f"optimizer: wanted rmsprop or adam, got {config.optimizer!r}")
    if graphed:
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros((), device=device)
        optimizer._warned_capturable_if_run_uncaptured = True  # the first steps are not recorded
    return optimizer


@cache
def _eager(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """`kind` without the wrappers of its methods that import `torch._dynamo`, which takes a second of each program's start.

    They are for optimisers inside `torch.compile`; ours never is. `step` keeps what else its wrapper does: no gradients.
    """
    wrapped = {name: unwrap(method) for name, method in vars(torch.optim.Optimizer).items() if isinstance(method, FunctionType)}
    return type(kind.__name__, (kind,), {**wrapped, "__init__": kind.__init__, "step": torch.no_grad()(unwrap(kind.step))})


def check_moments(
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


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
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


def lay_out_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give moments the memory layout of their weights on this device. Otherwise each step would loop over the tensors."""
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if moment.shape == parameter.shape and moment.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter).copy_(moment)


def check_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and dtypes. Raises ValueError that names the first tensor that differs, with both."""
    wanted, got = ({name: _described(tensor) for name, tensor in tensors.items()} for tensors in (own, state))
    for name in [*wanted, *got]:
        if wanted.get(name) != got.get(name):
            raise ValueError(f"wanted {name} as {wanted.get(name, 'absent')}, got {got.get(name, 'none')}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
