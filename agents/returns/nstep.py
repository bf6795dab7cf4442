"""Returns of n steps out of windows of rows (Sutton 1988, doi:10.1007/BF00115009; used by Rainbow, arXiv:1710.02298)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    """Returns of B windows whose first row is t, with m rows each.

    returns: G = sum over i < m of gamma^i r_{t+i}, `[B]`. discounts: factor D of the value at the bootstrap observation
    x_{t+m}, `[B]`: gamma^m, or 0 if row t+m-1 terminated. rows: m, int64 `[B]`; the window's observation m is x_{t+m}.
    """

    returns: Tensor
    discounts: Tensor
    rows: Tensor


@torch.no_grad()
def n_step(rewards: Tensor, terminated: Tensor, action_used: Tensor, gamma: float) -> NStep:
    """The returns of windows of n rows.

    m is n, or the rows up to and with the first one that terminated, or the rows before the first one whose action was not
    used, whichever is least. After a time limit the environment starts an episode and ignores the action of that row, so the
    window ends before it and bootstraps from the final observation. Rows beyond the stored trajectory are unused rows too.
    A window whose first row is unused has m = 0 and is worth nothing.

    Args:
        rewards: `[n, B]`.
        terminated: bool `[n, B]`.
        action_used: bool `[n, B]`.
        gamma: Discount per step.
    """
    alive = action_used.cumprod(0)  # 1 up to the first unused row, 0 from there on
    if len(rewards) > 1:  # a row that terminates still counts, and those behind it do not
        alive[1:] *= (~terminated[:-1]).cumprod(0)
    powers = gamma ** torch.arange(len(rewards) + 1, dtype=rewards.dtype, device=rewards.device)
    rows = alive.sum(0)
    kept = alive.bool()
    returns = (torch.where(kept, rewards, 0.0) * powers[:-1, None]).sum(0)
    goes_on = ~(terminated & kept).any(0) & (rows > 0)  # on a row whose action was ignored, terminated means nothing
    return NStep(returns, torch.where(goes_on, powers[rows], 0.0), rows)
