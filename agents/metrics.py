"""Scalars that show whether an update did what it should. They stay on the device, so nothing waits for them.

Each is a mean over the steps of a mask, so that runs with other batch sizes can be compared. A mean over no step (a batch
without a column of some replay) is NaN, which the learner's metrics leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agents.losses import Term
from agents.returns.vtrace import clipped_rhos
from replay.batch import Batch

ROUNDING = 1e-6  # standard deviation of float32 targets, in means, that may be rounding alone
ACTOR_CRITIC_CHARTS: dict[str, list[str]] = {
    "losses, mean per step": [r"losses/.*_loss$"],
    "entropy, nats": [r"losses/entropy$"],
    "explained variance of the value": [r"losses/explained_variance$"],
}
"""TensorBoard charts: title -> regular expressions of the metrics' names."""
LARGEST_LOG_RHO = 20.0  # the square of a larger ratio would overflow


class UpdateReport(NamedTuple):
    """The result of one update, for the learner's loop.

    scalars: metrics as tensors on the device; reading them is left to the recorder, so no update waits.
    optimizer_steps: steps of the optimiser since the run began, on a GPU up to the update before; None if each update is one.
    priorities: sizes of the temporal differences of the batch's columns, float32 `[B]` on the device, by which a prioritised
    replay draws them again; NaN leaves a priority as it is. None from an agent without them.
    """

    scalars: Mapping[str, Tensor]
    learning_rate: float
    optimizer_steps: int | None = None
    priorities: Tensor | None = None


class OptimizerStep(NamedTuple):
    """One optimiser step, without gradient.

    applied: bool `[]`, false if the step was refused. terms, metrics, priorities: see `Losses`; terms only where all parameters
    share one loss. norm: of the gradient before clipping, `[]`; None for a change that is no step of the optimiser.
    clipped: bool `[]`, where each term is clipped by itself.
    """

    applied: Tensor
    terms: Mapping[str, Term]
    metrics: Mapping[str, Tensor]
    norm: Tensor | None
    clipped: Tensor | None = None
    priorities: Tensor | None = None


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Means `[...]` of x `[..., T, B]` over the steps of a bool mask of that shape; NaN for an empty mask."""
    return torch.where(mask, x, 0.0).sum((-2, -1)) / mask.sum((-2, -1))  # 0 / 0 is NaN: the metric is left out


@torch.no_grad()
def value_metrics(values: Tensor, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Quality of the values. An explained variance of 1 is a perfect critic, 0 a constant one; NaN if all targets are equal.

    Args:
        values: `[T, B]` without gradient.
        targets: `[T, B]`, what the values are trained towards.
        mask: bool `[T, B]`, the steps that count.
    """
    quantities = torch.stack([targets - values, targets, values])  # [3, T, B]: one reduction for all three
    means = masked_mean(quantities, mask)  # [3]
    unexplained, all_there_is, of_values = masked_mean((quantities - means[:, None, None]).square(), mask)  # variances []
    # Equal targets have a variance of rounding errors alone. The quotient below would then be noise.
    varies = all_there_is > (ROUNDING * means[1]).square()
    return {
        "losses/explained_variance": torch.where(varies, 1 - unexplained / all_there_is, torch.nan),  # 1 - Var(G - V) / Var(G)
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
    ratios = log_rhos.exp()  # R_t [T, B]
    quantities = {
        "losses/entropy": entropies,
        "vtrace/mean_rho": clipped_rhos(log_rhos, clips[0][1]),
        **{f"vtrace/{name}_clip_fraction": (ratios > bar).float() for name, bar in clips},
    }
    means = masked_mean(torch.stack(list(quantities.values())), chosen)  # [number of quantities]
    return dict(zip(quantities, means, strict=True))


@torch.no_grad()
def replay_metrics(batch: Batch, chosen: Tensor, log_rhos: Tensor, trusted: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """For each replay of the mixture: the fraction of its steps that the trust region rejects, and the effective sample size.

    chosen: bool `[T, B]`, the steps whose action the policy chose. trusted: bool `[T, B]`. The effective sample size (sum of
    ratios)^2 / (n sum of squared ratios) is 1 on-policy and falls towards 1/n as few steps carry all the weight.
    """
    if not names:
        return {}
    ratios = log_rhos.clamp(max=LARGEST_LOG_RHO).exp()  # R_t [T, B]
    steps = torch.stack([chosen & (batch.source == index) for index in range(len(names))])  # [replays, T, B]
    quantities = torch.stack([(~trusted).float(), ratios, ratios.square()])  # [3, T, B]
    rejected, mean, mean_square = masked_mean(quantities[:, None], steps)  # [replays] each
    effective = mean.square() / mean_square  # (sum R)^2 / (n sum R^2)
    metrics: dict[str, Tensor] = {}
    for name, rejected_fraction, sample_size in zip(names, rejected, effective, strict=True):
        metrics[f"replay/{name}/rejected_fraction"] = rejected_fraction
        metrics[f"replay/{name}/effective_sample_size"] = sample_size
    return metrics


def results_of_steps(taken: Sequence[OptimizerStep], rows: int, limit: float) -> tuple[dict[str, Tensor], Tensor | None]:
    """The metrics of an update, as means over its steps, and the priorities of its columns.

    Args:
        taken: its steps, also those in which only other learners had a part.
        rows: steps of the environments that it learned from.
        limit: norm above which a gradient was clipped.

    Returns the metrics, and priorities `[B]` in the order of the columns: NaN where a step was refused, None without any.
    """
    stepped = [each for each in taken if each.norm is not None]  # without changes that are no optimiser step
    if not stepped:
        return {}, None
    own = [each for each in stepped if each.terms or each.metrics]  # without steps for other learners' parts
    metrics = [each.metrics for each in own]
    norms = torch.stack([each.norm for each in stepped if each.norm is not None])
    clips = [each.clipped for each in stepped if each.clipped is not None]
    clipped = torch.stack(clips) if clips else norms > limit  # bool [steps]
    terms = own[0].terms if own else {}
    values = [term.value for each in own for term in each.terms.values()]
    means = values if len(own) == 1 else torch.stack(values).view(len(own), len(terms)).mean(0).unbind() if terms else ()
    parts = [(name, mean, term) for (name, term), mean in zip(terms.items(), means, strict=True)]
    # Each term as a mean over the steps of the environments, without its weight, and the weighted total of these.
    shown = {f"losses/{name}": mean / rows if term.reduction == "sum" else mean for name, mean, term in parts}
    totals = [term.weight * mean for _, mean, term in parts if term.reduction == "mean"]
    if sums := [term.weight * mean for _, mean, term in parts if term.reduction == "sum"]:
        totals.insert(0, torch.stack(sums).sum() / rows)  # sums are divided once, after they are added
    if totals:
        shown["losses/total_loss"] = torch.stack(totals).sum()
    scalars = {
        **shown,
        # A number that a step does not have is NaN.
        **{name: torch.stack([each[name] for each in metrics]).nanmean() for name in (metrics[0] if len(metrics) > 1 else ())},
        **(metrics[0] if len(metrics) == 1 else {}),
        "losses/gradient_norm": norms.mean(),
        "losses/gradient_clipped": clipped.float().mean(),
    }
    found = [torch.where(each.applied, each.priorities, torch.nan) for each in own if each.priorities is not None]
    # Several batches of an update take its columns in turn, see `Transitions.split`.
    return scalars, torch.stack(found, -1).flatten() if found else None  # [B / steps, steps] -> [B]
