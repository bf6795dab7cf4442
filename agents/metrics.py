"""Numbers that show whether an update did what it should: scalars on the device, nothing waits for them.

Means are over used steps, so that settings with other batch sizes can be compared. Where there is nothing to take a mean of
(a batch without a column of some replay) the scalar is NaN, which the learner's metrics leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agents.losses import entropy
from agents.returns.vtrace import VTraceReturns, clipped_rhos
from replay.trajectory import Batch

LARGEST_LOG_RHO = 20.0  # beyond it a ratio only says "far off", and its square would overflow


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Means `[...]` of `[..., T, B]` over the steps of a bool mask that goes with it; NaN where it is empty."""
    return torch.where(mask, x, 0.0).sum((-2, -1)) / mask.sum((-2, -1))


@torch.no_grad()
def value_metrics(values: Tensor, targets: VTraceReturns, mask: Tensor) -> dict[str, Tensor]:
    """values `[T, B]` without gradient, mask bool `[T, B]`. Explained variance 1 is a perfect critic, 0 a constant one."""
    quantities = torch.stack([targets.vs - values, targets.vs, values])
    means = masked_mean(quantities, mask)
    unexplained, all_there_is, of_values = masked_mean((quantities - means[:, None, None]).square(), mask)
    return {
        "losses/explained_variance": 1 - unexplained / all_there_is.clamp(min=1e-8),
        "losses/value_mean": means[2],
        "losses/value_std": of_values.sqrt(),
    }


@torch.no_grad()
def ratio_metrics(logits: Tensor, log_rhos: Tensor, used: Tensor, clips: Sequence[tuple[str, float]]) -> dict[str, Tensor]:
    """Entropy of the policy, and how often each clip of the importance ratio acts. clips: name and bar of each."""
    ratios = log_rhos.exp()
    quantities = {
        "losses/entropy": entropy(logits),
        "vtrace/mean_rho": clipped_rhos(log_rhos, clips[0][1]),
        **{f"vtrace/{name}_clip_fraction": (ratios > bar).float() for name, bar in clips},
    }
    means = masked_mean(torch.stack(list(quantities.values())), used)
    return dict(zip(quantities, means, strict=True))


@torch.no_grad()
def replay_metrics(batch: Batch, log_rhos: Tensor, relevant: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """For each replay of the mixture: the part of its steps that the trust region rejects, and the effective sample size.

    relevant: bool `[T, B]`. The effective sample size (sum of ratios)^2 / (n sum of squared ratios) is 1 on-policy and falls
    towards 1/n as few steps carry all the weight.
    """
    if not names:
        return {}
    ratios = log_rhos.clamp(max=LARGEST_LOG_RHO).exp()
    steps = torch.stack([batch.action_used & (batch.source == index) for index in range(len(names))])
    quantities = torch.stack([(~relevant).float(), ratios, ratios.square()])
    rejected, mean, mean_square = masked_mean(quantities[:, None], steps)
    effective = mean.square() / mean_square
    metrics: dict[str, Tensor] = {}
    for name, rejected_fraction, sample_size in zip(names, rejected, effective, strict=True):
        metrics[f"replay/{name}/rejected_fraction"] = rejected_fraction
        metrics[f"replay/{name}/effective_sample_size"] = sample_size
    return metrics
