"""IQN: quantiles of the return at fractions that are drawn anew for each window (Dabney et al. 2018, arXiv:1806.06923).

    phi_f(tau) = relu(sum_{i=0}^{63} cos(pi i tau) w_if + b_f)        theta(tau) = head(features * phi(tau))   (equation 4)
    Q(x, a) = mean_k theta(tau_k)        y_j = G + D theta'(tau'_j; x', a*)
    loss = sum_i mean_j |tau_i - 1{u_ij < 0}| L_kappa(u_ij) / kappa,   u_ij = y_j - theta(tau_i; x_t, a_t)     (equation 3)

tau_i are the drawn fractions of the learning pass, not midpoints. The targets' fractions tau'_j and those that select a* are
drawn independently. Pure functions: fractions come as arguments.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agents.values.quantiles import quantile_errors_of, quantile_huber

COSINES = 64
"""Cosines that describe a fraction, as in the paper."""


def cosines(fractions: Tensor, count: int = COSINES, first: int = 0) -> Tensor:
    """cos(pi i tau) for i = first to first + count - 1, `[..., count]`.

    Args:
        fractions: tau in [0, 1], `[...]`.
        count: cosines.
        first: the first i. The paper begins at 0, whose cosine is 1.
    """
    multiples = torch.arange(first, first + count, dtype=fractions.dtype, device=fractions.device)  # i, [count]
    return torch.cos(math.pi * multiples * fractions.unsqueeze(-1))


def implicit_quantile_loss(quantiles: Tensor, fractions: Tensor, targets: Tensor, kappa: float = 1.0) -> Tensor:
    """The quantile Huber loss of each window at drawn fractions, `[B]`.

    Args:
        quantiles: theta `[B, N]` of the actions taken at these fractions, with gradient.
        fractions: tau `[B, N]`.
        targets: y `[B, M]`, constants; M may differ from N.
        kappa: where the Huber loss becomes a line. The loss is divided by it.
    """
    return quantile_huber(quantile_errors_of(quantiles, targets), fractions, kappa) / kappa


def implicit_priorities(quantiles: Tensor, targets: Tensor) -> Tensor:
    """sum_i mean_j |u_ij|, `[B]`, the priority of Beyond the Rainbow (arXiv:2411.03820). Arguments as for the loss."""
    return quantile_errors_of(quantiles.detach(), targets).abs().mean(-1).sum(-1)
