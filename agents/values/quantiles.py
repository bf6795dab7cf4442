"""QR-DQN: N quantiles of the return for each action (Dabney et al. 2018, arXiv:1710.10044, equations 9 and 10).

    tau_i = (2i + 1) / (2N)        Q(x, a) = mean_i theta_i(x, a)        y_j = G + D theta'_j(x', a')
    loss = sum_i mean_j |tau_i - 1{y_j - theta_i < 0}| L_kappa(y_j - theta_i(x_t, a_t))

The sum runs over the network's own quantiles i, the mean over the targets j. A mean over both would divide the step by N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.values.q_learning import huber


def midpoints(count: int, like: Tensor) -> Tensor:
    """The middles (2i + 1) / (2N) of N equal parts of [0, 1], `[count]`, with the type and device of `like`."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def quantile_errors_of(quantiles: Tensor, targets: Tensor) -> Tensor:
    """u_ij = y_j - theta_i, `[B, N, M]`. quantiles: theta `[B, N]`. targets: y `[B, M]`, constants."""
    return targets.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)


def quantile_huber(errors: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """sum_i mean_j |tau_i - 1{u_ij < 0}| L_kappa(u_ij), `[B]`.

    Args:
        errors: u `[B, N, M]`, with gradient.
        fractions: tau `[N]` or `[B, N]`.
        kappa: where the Huber loss L becomes a line; 0 for the plain quantile loss. L is not divided by kappa.
    """
    sizes = huber(errors, kappa) if kappa else errors.abs()  # L_kappa(u_ij) [B, N, M]
    # Targets above a quantile pull with tau and those below with 1 - tau, so it rests where a part tau lies below it.
    slopes = (fractions.unsqueeze(-1) - (errors.detach() < 0).to(fractions.dtype)).abs()  # [B, N, M]
    return (slopes * sizes).mean(-1).sum(-1)  # mean over targets j, sum over own quantiles i


def quantile_loss(quantiles: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """The quantile Huber loss of each window at midpoints, `[B]`.

    Args:
        quantiles: theta `[B, N]` of the actions taken, with gradient.
        targets: y `[B, M]`, constants; M may differ from N.
        kappa: as for `quantile_huber`.
    """
    return quantile_huber(quantile_errors_of(quantiles, targets), midpoints(quantiles.shape[-1], quantiles), kappa)
