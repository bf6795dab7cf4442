"""PPO's objectives and the numbers that control an update: pure functions (Schulman et al. 2017, arXiv:1707.06347).

R_t = pi(a_t|x_t) / mu(a_t|x_t) is the ratio of the policy that learns and the policy that acted. All functions take log R_t,
which is one number a step, for vector actions too. None of them takes a mean: the caller does, over the used steps.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from setting import Linear, Setting

LARGEST_LOG_RATIO = 20.0
"""log R is kept within +-20 before exp, so that float32 cannot overflow."""
STOP_FACTOR = 1.5
"""An update stops early once the divergence is above this many targets, as in Stable-Baselines3."""
TOO_FAR, TOO_NEAR = 1.5, 1 / 1.5
"""Divergences, in targets, above and below which the weight of the KL penalty changes (section 4)."""
KL_WEIGHT_RANGE = (1e-6, 1e6)
"""Bounds of that weight. A run has many updates, so without a bound halving it would soon end at 0 for ever."""
KL_WEIGHT = "kl_weight"
"""Name of that weight among an agent's numbers."""

Clip = Annotated[
    float,
    Setting(
        "Clip of the importance ratio, on both sides of 1, at the start of the run.",
        "a number from 0.001 to 0.999",
        1e-3,
        0.999,
        search=Linear(0.1, 0.4),
    ),
]
LastClip = Annotated[
    float,
    Setting(
        "Clip of the importance ratio at the end of the run, linear over its fresh frames; -1: that of the start.",
        "-1 or a number from 0.001 to 0.999",
        -1,
        0.999,
    ),
]


def last_clip(clip: float, end_value: float) -> float:
    """The clip at the end of the run. Raises ValueError for an end value between -1 and 0.001."""
    if -1 < end_value < 1e-3:
        raise ValueError(f"clip_end_value: wanted -1 or a number from 0.001 to 0.999, got {end_value:g}")
    return clip if end_value < 0 else end_value


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
    free = torch.full_like(advantages, LARGEST_LOG_RATIO)  # no bound but that against overflow
    # A good action (A > 0) gains nothing from a ratio above 1 + eps, and a bad one nothing from a ratio below 1 - eps.
    low = free.neg() if clip is None else torch.where(advantages < 0, math.log1p(-clip), -free)  # log(1 - eps) where A < 0
    high = free if clip is None else torch.where(advantages > 0, math.log1p(clip), free)  # log(1 + eps) where A > 0
    # Dual clip: with A < 0 nothing limits R above, so one step with a huge ratio could dominate the batch.
    return RatioBounds(low, high if dual_clip is None else torch.where(advantages < 0, math.log(dual_clip), high))


def surrogate(log_ratios: Tensor, advantages: Tensor, bounds: RatioBounds) -> Tensor:
    """The objective of each step, to be maximised, of the shape of log_ratios.

    Args:
        log_ratios: log R_t with gradient, 0 where a step is masked.
        advantages: A_t, constants of the same shape.
        bounds: `ratio_bounds` of the advantages.
    """
    # A clamped step has no gradient: it no longer moves the policy.
    return advantages * torch.clamp(log_ratios, bounds.low, bounds.high).exp()  # A_t R_t within the bounds


def clipped_value_errors(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """0.5 max((V - G)^2, (V_old + clip(V - V_old, -c, c) - G)^2) of each step, as in OpenAI baselines.

    Args:
        values: V(x_t) with gradient, of any shape.
        old_values: V_old of the same shape, before the update.
        targets: G_t of the same shape.
        clip: c > 0, in units of the value.
    """
    # The larger error counts: a value that came more than c nearer to its target has no further gradient.
    near = old_values + (values - old_values).clamp(-clip, clip)  # V_old + clip(V - V_old, -c, c)
    return 0.5 * torch.maximum((values - targets).square(), (near - targets).square())


def approx_kl(log_ratios: Tensor) -> Tensor:
    """R - 1 - log R of each step, whose mean is an unbiased estimate of KL(mu || pi) that is never negative.

    It is "k3" of Schulman's note "Approximating KL Divergence" (2020). Its gradient is not that of the divergence.
    """
    kept = log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return kept.expm1() - kept  # expm1: R - 1 loses its digits near R = 1, where most steps are


def clip_fraction(log_ratios: Tensor, clip: float) -> Tensor:
    """1 for each step with |R - 1| > eps, else 0. Not every such step has lost its gradient."""
    return (log_ratios.clamp(max=LARGEST_LOG_RATIO).expm1().abs() > clip).float()


def zero_gradient_fraction(log_ratios: Tensor, bounds: RatioBounds) -> Tensor:
    """1 for each step whose policy gradient the clipping has removed, else 0."""
    # The bound depends on the sign of A_t, unlike that of `clip_fraction`: a good action below 1 - eps still learns.
    return ((log_ratios < bounds.low) | (log_ratios > bounds.high)).float()


def stops_early(divergence: float, target: float) -> bool:
    """Whether the update ends before this step. divergence: mean `approx_kl` of the step's minibatch."""
    return divergence > STOP_FACTOR * target


def next_kl_weight(weight: Tensor, divergence: Tensor, target: float) -> Tensor:
    """The weight of the KL penalty for the next update (section 4): halved below target / 1.5, doubled above 1.5 target.

    It stays within `KL_WEIGHT_RANGE`. A divergence that is not finite leaves it as it is. The host never reads the divergence,
    so no update waits for a GPU.

    Args:
        weight: float64 `[]`.
        divergence: `[]` on the same device.
        target: divergence in nats.
    """
    following = torch.where(divergence < TOO_NEAR * target, weight / 2, weight)  # d < d_targ / 1.5: beta / 2
    following = torch.where(divergence > TOO_FAR * target, weight * 2, following).clamp(*KL_WEIGHT_RANGE)
    return torch.where(divergence.isfinite(), following, weight)
