"""Optimisers: how they are made, clipping of gradients, and their moments in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

RMSPROP_DECAY = 0.99
NORM_EPSILON = 1e-6
"""Added to a gradient's norm before the division, as PyTorch does."""
MOMENTS = {"rmsprop": {"step", "square_avg"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}
"""Name of an optimiser -> names of its moments."""


def make_optimizer(config: Any, modules: Iterable[nn.Module], *, graphed: bool = False) -> torch.optim.Optimizer:
    """The optimiser that the config names, with one group of parameters for each module.

    Args:
        config: an `agents.guarded.LearnedConfig`.
        modules: on one device.
        graphed: whether its steps may be recorded as a CUDA graph. Then their count and the learning rate are on the device.
    """
    groups = [{"params": list(module.parameters())} for module in modules]
    device = groups[0]["params"][0].device
    if config.optimizer == "rmsprop":
        optimizer: torch.optim.Optimizer = torch.optim.RMSprop(
            groups, lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True, capturable=graphed
        )
    elif config.optimizer == "adam":
        # On a CPU it is twice as fast fused, in a graph one kernel; PyTorch has that for Adam alone.
        fused = device.type == "cpu" or graphed
        optimizer = torch.optim.Adam(groups, lr=0.0, eps=config.adam_eps, fused=fused, foreach=not fused, capturable=graphed)
    else:
        raise ValueError(f"optimizer: wanted rmsprop or adam, got {config.optimizer!r}")
    if graphed:
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros((), device=device)
        optimizer._warned_capturable_if_run_uncaptured = True  # the first steps are not recorded
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameters for the next steps."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


@torch.no_grad()
def give_gradients(parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """Set `grad` of each parameter, in the parameter's own memory layout.

    A convolution returns the gradient of its kernel in the layout of its input. `backward` converts it, and
    `torch.autograd.grad` does not. PyTorch's fused Adam checks no strides: it pairs numbers by their place in memory, so in
    another layout each weight would move by another weight's gradient.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        same = gradient.stride() == parameter.stride()
        parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], largest_norm: float) -> Tensor:
    """Scale the gradients of all parameters down to a global norm of at most `largest_norm`; 0 only measures the norm.

    Returns the norm before, `[]`.

    The operations are those of `torch.nn.utils.clip_grad_norm_` without its checks, which take longer than a small network's
    gradients take to clip.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if largest_norm:
        torch._foreach_mul_(gradients, torch.clamp(largest_norm / (norm + NORM_EPSILON), max=1.0))
    return norm


def start_mean_squares(optimizer: torch.optim.RMSprop) -> None:
    """Start RMSProp's running mean of squared gradients at a weight's first squared gradient instead of at zero.

    From zero the first step is 1/sqrt(1 - 0.99) = 10 times the learning rate in every weight, whatever the gradient. It was
    seen to leave a convolutional network with a constant value for good.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or parameter in optimizer.state:
                continue
            count = torch.zeros((), device=parameter.device if group["capturable"] else "cpu")
            optimizer.state[parameter] = {"step": count, "square_avg": parameter.grad.square()}


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
