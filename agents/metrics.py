"""Numbers that show whether an update did what it should: scalars on the device, nothing waits for them.

Means are over used steps, so that settings with other batch sizes can be compared. Where there is nothing to take a mean of
(a batch without a column of some replay) the scalar is NaN, which the learner's metrics leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agents.losses import entropy
from agents.vtrace import VTraceReturns, clipped_rhos
from replay.trajectory import Batch

LARGEST_LOG_RHO = 20.0  # beyond it a ratio only says "far off", and its square would overflow


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `[T, B]` over the steps of a bool mask of the same shape; NaN where it is empty."""
    return torch.where(mask, x, 0.0).sum() / mask.sum()


def masked_variance(x: Tensor, mask: Tensor) -> Tensor:
    """Variance of `[T, B]` over the steps of a bool mask."""
    return masked_mean((x - masked_mean(x, mask)).square(), mask)


@torch.no_grad()
def value_metrics(values: Tensor, targets: VTraceReturns, mask: Tensor) -> dict[str, Tensor]:
    """values `[T, B]` without gradient, mask bool `[T, B]`. Explained variance 1 is a perfect critic, 0 a constant one."""
    unexplained = masked_variance(targets.vs - values, mask) / masked_variance(targets.vs, mask).clamp(min=1e-8)
    return {
        "losses/explained_variance": 1 - unexplained,
        "losses/value_mean": masked_mean(values, mask),
        "losses/value_std": masked_variance(values, mask).sqrt(),
    }


@torch.no_grad()
def ratio_metrics(logits: Tensor, log_rhos: Tensor, used: Tensor, clips: Sequence[tuple[str, float]]) -> dict[str, Tensor]:
    """Entropy of the policy, and how often each clip of the importance ratio acts. clips: name and bar of each."""
    clipped = {f"vtrace/{name}_clip_fraction": masked_mean((log_rhos.exp() > bar).float(), used) for name, bar in clips}
    return {
        "losses/entropy": masked_mean(entropy(logits), used),
        "vtrace/mean_rho": masked_mean(clipped_rhos(log_rhos, clips[0][1]), used),
        **clipped,
    }


@torch.no_grad()
def replay_metrics(batch: Batch, log_rhos: Tensor, relevant: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """For each replay of the mixture: the part of its steps that the trust region rejects, and the effective sample size.

    relevant: bool `[T, B]`. The effective sample size (sum of ratios)^2 / (n sum of squared ratios) is 1 on-policy and falls
    towards 1/n as few steps carry all the weight.
    """
    ratios = log_rhos.clamp(max=LARGEST_LOG_RHO).exp()
    metrics: dict[str, Tensor] = {}
    for index, name in enumerate(names):
        steps = batch.action_used & (batch.source == index)
        metrics[f"replay/{name}/rejected_fraction"] = masked_mean((~relevant).float(), steps)
        metrics[f"replay/{name}/effective_sample_size"] = masked_mean(ratios, steps).square() / masked_mean(
            ratios.square(), steps
        )
    return metrics
