"""Makes the optimiser of an agent."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch import nn

RMSPROP_DECAY = 0.99
ADAM_BETAS = (0.9, 0.999)


def make_optimizer(config: Any, modules: Collection[nn.Module], *, graphed: bool = False) -> torch.optim.Optimizer | None:
    """The optimiser that the config names, with one group of parameters for each module; None for an agent without one.

    Args:
        config: the agent's settings.
        modules: on one device. Weight decay leaves out those with a false attribute `decays`.
        graphed: whether its steps may be recorded as a CUDA graph. Then their count and the learning rate are on the device.
    """
    if not hasattr(config, "optimizer"):
        return None
    decay, first_beta = getattr(config, "decoupled_decay", 0.0), getattr(config, "adam_beta1", ADAM_BETAS[0])
    groups: list[dict[str, Any]] = [{"params": list(module.parameters())} for module in modules]
    for group, module in zip(groups, modules, strict=True) if decay else ():
        group["weight_decay"] = decay if getattr(module, "decays", True) else 0.0
    device = groups[0]["params"][0].device
    if config.optimizer == "rmsprop":
        optimizer: torch.optim.Optimizer = _eager(torch.optim.RMSprop)(
            groups, lr=0.0, alpha=RMSPROP_DECAY, eps=config.rmsprop_eps, foreach=True, capturable=graphed
        )
    elif config.optimizer == "adam":
        # On a CPU it is twice as fast fused, in a graph one kernel; PyTorch has that for Adam alone.
        fused = device.type == "cpu" or graphed
        # AdamW subtracts lr * decay * weight beside the step. In the gradient, Adam would divide the decay by its root.
        kind = torch.optim.AdamW if decay else torch.optim.Adam
        options = {"betas": (first_beta, ADAM_BETAS[1]), "eps": config.adam_eps}
        optimizer = _eager(kind)(groups, lr=0.0, **options, fused=fused, foreach=not fused, capturable=graphed)
    elif config.optimizer == "radam":
        # Liu et al. 2020, arXiv:1908.03265. Its first five steps are plain momentum, until the mean of squares has a variance.
        betas = (first_beta, ADAM_BETAS[1])
        optimizer = _eager(torch.optim.RAdam)(
            groups, lr=0.0, betas=betas, eps=config.adam_eps, foreach=True, capturable=graphed
        )
    else:
        raise ValueError(f"optimizer: wanted rmsprop, adam or radam, got {config.optimizer!r}")
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
