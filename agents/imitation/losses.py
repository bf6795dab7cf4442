"""Losses and weights of the agents that imitate recorded actions. Pure functions; rows are `[T, B]`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agents.losses import used_mean


def cloning_loss(log_probs: Tensor, used: Tensor, weights: Tensor | None = None) -> Tensor:
    """- mean of w log pi(a|x) over the used rows, a scalar.

    Args:
        log_probs: `[T, B]` of the recorded actions, with gradient.
        used: bool `[T, B]`, the rows whose action was used.
        weights: `[T, B]` w, constants; 1 by default.
    """
    return -used_mean(log_probs if weights is None else weights.detach() * log_probs, used)


def squared_scale(scale: Tensor, advantages: Tensor, used: Tensor, rate: float) -> Tensor:
    """The running mean square c^2 of the advantages after a batch: c^2 + rate (mean A^2 - c^2), a scalar without gradient.

    Without a row that counts it stays.

    Args:
        scale: `[]`, c^2 before.
        advantages: `[T, B]`.
        used: bool `[T, B]`, the rows that count.
        rate: in [0, 1].
    """
    following = scale + rate * (used_mean(advantages.detach().square(), used) - scale)  # c^2 + rate (mean A^2 - c^2)
    return torch.where(used.any(), following, scale)


def advantage_weights(advantages: Tensor, scale: Tensor, beta: float, largest: float = math.inf) -> Tensor:
    """exp(beta A / c), at most `largest`, `[T, B]`, without gradient. scale: `[]`, c^2."""
    # Cut before the exponential: that of a large advantage would not be finite.
    return (beta * advantages.detach() / scale.sqrt()).clamp(max=math.log(largest)).exp()


@torch.no_grad()
def accuracy(best: Tensor, actions: Tensor, used: Tensor) -> Tensor:
    """The share of the used rows whose recorded action is the policy's best one, a scalar.

    best, actions: `[T, B]` or `[T, B, D]`; all components must agree. used: bool `[T, B]`.
    """
    same = best == actions  # [T, B], or [T, B, D] of several choices
    return used_mean((same if same.dim() == used.dim() else same.all(-1)).float(), used)
