"""The mathematics of LinUCB with disjoint arms (Li et al. 2010, arXiv:1003.0146, algorithm 1), in the precision of its inputs.

An arm is an action. Each has a ridge regression of its own, from contexts x `[F]` to rewards r:

    A = ridge I + sum x x',  b = sum r x,  theta = A^-1 b       over the pulls of this arm
    estimate = x' theta,  width = sqrt(x' A^-1 x)

Sums do not depend on the order of the pulls, nor on how they are cut into batches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ArmSums(NamedTuple):
    """Sums over the pulls of each of n arms. matrices: sum x x', `[n, F, F]`. vectors: sum r x, `[n, F]`."""

    matrices: Tensor
    vectors: Tensor


def sums_of(contexts: Tensor, arms: Tensor, rewards: Tensor, count: int) -> ArmSums:
    """The sums over N pulls.

    Args:
        contexts: `[N, F]`.
        arms: int64 `[N]`, which arm was pulled.
        rewards: `[N]`.
        count: n, the number of arms.
    """
    pulls = [(contexts[arms == arm], rewards[arms == arm]) for arm in range(count)]  # [pulls, F] and [pulls] of each arm
    return ArmSums(torch.stack([x.T @ x for x, _ in pulls]), torch.stack([x.T @ r for x, r in pulls]))  # sum x x', sum r x


def solved(sums: ArmSums, ridge: float) -> tuple[Tensor, Tensor]:
    """theta `[n, F]` and A^-1 `[n, F, F]` of each arm.

    ridge: above 0, so that A is positive definite. Beside contexts that are too large for it, it is lost in rounding; then all
    numbers of the arm are NaN.
    """
    identity = torch.eye(sums.vectors.shape[-1], dtype=sums.vectors.dtype, device=sums.vectors.device)
    factors, failed = torch.linalg.cholesky_ex(sums.matrices + ridge * identity)  # A = L L'; `_ex` raises nothing
    inverse = torch.cholesky_inverse(factors.masked_fill(failed[:, None, None] != 0, torch.nan))
    return (inverse @ sums.vectors.unsqueeze(-1)).squeeze(-1), inverse  # theta = A^-1 b


def estimates_and_widths(contexts: Tensor, theta: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """The expected reward of each arm and its standard deviation in units of the noise, `[N, n]` each. contexts: `[N, F]`."""
    # No einsum of three tensors: how it computes, and whether it can be exported, depends on whether opt_einsum is installed.
    squares = (torch.matmul(contexts, inverse) * contexts).sum(-1).T  # x' A^-1 x: [n, N] -> [N, n]
    return contexts @ theta.T, squares.clamp(min=0.0).sqrt()  # rounding may leave a square below 0
