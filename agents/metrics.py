"""Scalars that show whether an update did what it should. They stay on the device, so nothing waits for them.

Each is a mean over the steps of a mask, so that runs with other batch sizes can be compared. A mean over no step (a batch
without a column of some replay) is NaN, which the learner's metrics leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agents.returns.vtrace import clipped_rhos
from replay.batch import Batch

ROUNDING = 1e-6  # standard deviation of float32 targets, in means, that may be rounding alone
LARGEST_LOG_RHO = 20.0  # the square of a larger ratio would overflow


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Means `[...]` of x `[..., T, B]` over the steps of a bool mask of that shape; NaN for an empty mask."""
    return torch.where(mask, x, 0.0).sum((-2, -1)) / mask.sum((-2, -1))


@torch.no_grad()
def value_metrics(values: Tensor, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Quality of the values. An explained variance of 1 is a perfect critic, 0 a constant one; NaN if all targets are equal.

    Args:
        values: `[T, B]` without gradient.
        targets: `[T, B]`, what the values are trained towards.
        mask: bool `[T, B]`, the steps that count.
    """
    quantities = torch.stack([targets - values, targets, values])
    means = masked_mean(quantities, mask)
    unexplained, all_there_is, of_values = masked_mean((quantities - means[:, None, None]).square(), mask)
    varies = all_there_is > (ROUNDING * means[1]).square()
    return {
        "losses/explained_variance": torch.where(varies, 1 - unexplained / all_there_is, torch.nan),
        "losses/value_mean": means[2],
        "losses/value_std": of_values.sqrt(),
    }


@torch.no_grad()
def ratio_metrics(entropies: Tensor, log_rhos: Tensor, chosen: Tensor, clips: Sequence[tuple[str, float]]) -> dict[str, Tensor]:
    """Entropy of the policy, and the fraction of steps whose importance ratio each clip cuts.

    Args:
        entropies: `[T, B]` of the current policy.
        log_rhos: `[T, B]` log pi - log mu of the actions taken.
        chosen: bool `[T, B]`, the steps whose action the policy chose.
        clips: name and bar of each clip; the first gives the mean ratio.
    """
    ratios = log_rhos.exp()
    quantities = {
        "losses/entropy": entropies,
        "vtrace/mean_rho": clipped_rhos(log_rhos, clips[0][1]),
        **{f"vtrace/{name}_clip_fraction": (ratios > bar).float() for name, bar in clips},
    }
    means = masked_mean(torch.stack(list(quantities.values())), chosen)
    return dict(zip(quantities, means, strict=True))


@torch.no_grad()
def replay_metrics(batch: Batch, chosen: Tensor, log_rhos: Tensor, trusted: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """For each replay of the mixture: the fraction of its steps that the trust region rejects, and the effective sample size.

    chosen: bool `[T, B]`, the steps whose action the policy chose. trusted: bool `[T, B]`. The effective sample size (sum of
    ratios)^2 / (n sum of squared ratios) is 1 on-policy and falls towards 1/n as few steps carry all the weight.
    """
    if not names:
        return {}
    ratios = log_rhos.clamp(max=LARGEST_LOG_RHO).exp()
    steps = torch.stack([chosen & (batch.source == index) for index in range(len(names))])
    quantities = torch.stack([(~trusted).float(), ratios, ratios.square()])
    rejected, mean, mean_square = masked_mean(quantities[:, None], steps)
    effective = mean.square() / mean_square
    metrics: dict[str, Tensor] = {}
    for name, rejected_fraction, sample_size in zip(names, rejected, effective, strict=True):
        metrics[f"replay/{name}/rejected_fraction"] = rejected_fraction
        metrics[f"replay/{name}/effective_sample_size"] = sample_size
    return metrics


def means_of_steps(scalars: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Means over the steps of an update. A number that a step does not have is NaN."""
    if len(scalars) == 1:
        return scalars[0]
    return {name: torch.stack([each[name] for each in scalars]).nanmean() for name in scalars[0]}
