"""PPO's objectives and the numbers that control an update: pure functions (Schulman et al. 2017, arXiv:1707.06347).

R_t = pi(a_t|x_t) / mu(a_t|x_t) is the ratio of the policy that learns and the policy that acted. All functions take log R_t,
which is one number a step, for vector actions too. None of them takes a mean: the caller does, over the used steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 20.0
"""log R is kept within +-20 before exp, so that float32 cannot overflow."""
STOP_FACTOR = 1.5
"""An update stops early once the divergence is above this many targets, as in Stable-Baselines3."""
TOO_FAR, TOO_NEAR = 1.5, 1 / 1.5
"""Divergences, in targets, above and below which the weight of the KL penalty changes (section 4)."""


class RatioBounds(NamedTuple):
    """Bounds of log R outside of which a step has no gradient, each of the advantages' shape."""

    low: Tensor
    high: Tensor


def ratio_bounds(advantages: Tensor, clip: float | None, dual_clip: float | None = None) -> RatioBounds:
    """The bounds with which `surrogate` equals min(R A, clip(R, 1 - eps, 1 + eps) A) (equation 7).

    That minimum is A min(R, 1 + eps) for A > 0 and A max(R, 1 - eps) for A < 0. So each step has one bound, which is known
    before the policy is.

    Args:
        advantages: A_t, of any shape.
        clip: eps, in (0, 1); None for no clipping.
        dual_clip: c > 1: for A < 0 the objective is at least c A (Ye et al. 2020, arXiv:1912.09729, equation 5). None for none.
    """
    if clip is not None and not 0 < clip < 1:
        raise ValueError(f"clip: wanted a number in (0, 1), or None for no clipping; got {clip}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip: wanted a number above 1, or None for none; got {dual_clip}")
    free = torch.full_like(advantages, LARGEST_LOG_RATIO)
    low = free.neg() if clip is None else torch.where(advantages < 0, math.log1p(-clip), -free)
    high = free if clip is None else torch.where(advantages > 0, math.log1p(clip), free)
    return RatioBounds(low, high if dual_clip is None else torch.where(advantages < 0, math.log(dual_clip), high))


def surrogate(log_ratios: Tensor, advantages: Tensor, bounds: RatioBounds) -> Tensor:
    """The objective of each step, to be maximised, of the shape of log_ratios.

    Args:
        log_ratios: log R_t with gradient, 0 where a step is masked.
        advantages: A_t, constants of the same shape.
        bounds: `ratio_bounds` of the advantages.
    """
    return advantages * torch.clamp(log_ratios, bounds.low, bounds.high).exp()


def clipped_value_errors(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """0.5 max((V - G)^2, (V_old + clip(V - V_old, -c, c) - G)^2) of each step, as in OpenAI baselines.

    Args:
        values: V(x_t) with gradient, of any shape.
        old_values: V_old of the same shape, before the update.
        targets: G_t of the same shape.
        clip: c > 0, in units of the value.
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - targets).square(), (near - targets).square())


def approx_kl(log_ratios: Tensor) -> Tensor:
    """R - 1 - log R of each step, whose mean is an unbiased estimate of KL(mu || pi) that is never negative.

    It is "k3" of Schulman's note "Approximating KL Divergence" (2020). Its gradient is not that of the divergence.
    """
    kept = log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return kept.expm1() - kept


def clip_fraction(log_ratios: Tensor, clip: float) -> Tensor:
    """1 for each step with |R - 1| > eps, else 0. Not every such step has lost its gradient."""
    return (log_ratios.clamp(max=LARGEST_LOG_RATIO).expm1().abs() > clip).float()


def zero_gradient_fraction(log_ratios: Tensor, bounds: RatioBounds) -> Tensor:
    """1 for each step whose policy gradient the clipping has removed, else 0."""
    return ((log_ratios < bounds.low) | (log_ratios > bounds.high)).float()


def stops_early(divergence: float, target: float) -> bool:
    """Whether neither this step nor any other of the update is taken. divergence: mean `approx_kl` of its minibatch."""
    return divergence > STOP_FACTOR * target


def next_kl_weight(weight: float, divergence: float, target: float) -> float:
    """The weight of the KL penalty for the next update (section 4): halved below target / 1.5, doubled above 1.5 target.

    divergence: mean KL(mu || pi) after the update.
    """
    if divergence < TOO_NEAR * target:
        return weight / 2
    return weight * 2 if divergence > TOO_FAR * target else weight
