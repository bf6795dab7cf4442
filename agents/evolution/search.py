"""Formulas of evolutionary search, as pure functions of returns and perturbations.

With n pairs of members theta +- sigma eps_i evolution strategies (ES) estimate

    g = 1/(2 n sigma) sum_i (w+_i - w-_i) eps_i,     w = rank / (2n - 1) - 1/2 over all 2n returns

The cross-entropy method (CEM) draws members from mean + std N(0, 1) and moves both towards its best ones.

Sources: Salimans et al. 2017 (arXiv:1703.03864), algorithm 1 and section 2.1; Rubinstein 1999 (doi:10.1023/A:1010091220143),
and Szita and Loerincz 2006 (doi:10.1162/neco.2006.18.12.2936) for the extra variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def centred_ranks(returns: Tensor) -> Tensor:
    """The rank of each return among all, scaled to -1/2 .. 1/2; float64 in the shape of `returns`.

    Equal returns share the mean of their ranks. So if all are equal, all weights are 0 and no step is taken.

    returns: two or more numbers, `[M]` or `[n, 2]`; not NaN.
    """
    flat = returns.flatten()
    ordered = flat.sort().values  # [M]
    lowest = torch.searchsorted(ordered, flat)  # rank of the first of the equal returns, from 0
    highest = torch.searchsorted(ordered, flat, right=True) - 1  # that of the last one
    # rank / (M - 1) - 1/2. Ranks in place of returns: a single huge return cannot dominate the step.
    return ((lowest + highest).double() / 2 / (len(flat) - 1) - 0.5).view(returns.shape)


def evolution_gradient(weights: Tensor, noise: Iterable[Tensor], sigma: float) -> Tensor:
    """The direction in which the return grows, `[dim]`.

    Args:
        weights: `[n, 2]`, of each pair's member with +eps and of that with -eps.
        noise: eps of each pair, `[dim]`. One at a time is kept in memory.
        sigma: standard deviation of the perturbations.
    """
    total: Tensor | None = None
    for difference, eps in zip((weights[:, 0] - weights[:, 1]).tolist(), noise, strict=True):  # w+_i - w-_i
        total = torch.zeros_like(eps) if total is None else total
        total.add_(eps, alpha=difference)  # eps_i is drawn anew, so n perturbations need the memory of one
    assert total is not None, "wanted a pair or more, got none"
    return total / (2 * len(weights) * sigma)  # 1 / (2 n sigma)


def best_members(returns: Tensor, count: int) -> list[int]:
    """The indices of the `count` highest returns `[M]`, best first. Of equal returns the first ones are taken."""
    # A stable sort: of equal returns the lower number comes first.
    found: list[int] = returns.sort(descending=True, stable=True).indices[:count].tolist()
    return found


def cross_entropy(
    elites: Sequence[Tensor], mean: Tensor, std: Tensor, *, smoothing: float, extra_variance: float
) -> tuple[Tensor, Tensor]:
    """The new mean and standard deviations of the members, `[dim]` each.

    Args:
        elites: the best members, `[dim]` each.
        mean, std: those that the members were drawn with, `[dim]` each.
        smoothing: the part of the way from the old mean and variance to those of the elites, in (0, 1].
        extra_variance: added to each variance, so that the search does not narrow too soon.
    """
    of_elites = sum(elites[1:], elites[0]) / len(elites)  # mean(elites) [dim]
    squares = [(elite - of_elites).square() for elite in elites]
    # The population's variance, not an estimate of a larger one: a single elite has variance 0.
    variance = sum(squares[1:], squares[0]) / len(elites)
    new_mean = smoothing * of_elites + (1 - smoothing) * mean
    # Variances are smoothed, not deviations, and the extra variance is added behind the smoothing.
    new_variance = smoothing * variance + (1 - smoothing) * std.square() + extra_variance
    return new_mean, new_variance.sqrt()
