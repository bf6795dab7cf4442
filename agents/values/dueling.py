"""Dueling heads: a value of the state, and advantages of the actions (Wang et al. 2016, arXiv:1511.06581)."""

from __future__ import annotations

from torch import Tensor


def dueling(values: Tensor, advantages: Tensor) -> Tensor:
    """V + A - mean_a A (equation 9), shape of `advantages`. With atoms it is taken for each atom, before the softmax.

    Args:
        values: V `[N]`, or `[N, K]` for K atoms.
        advantages: A `[N, A]`, or `[N, A, K]`.
    """
    # Without the mean a constant could move from V to A unseen, and neither would be determined by their sum.
    return values.unsqueeze(1) + advantages - advantages.mean(1, keepdim=True)
