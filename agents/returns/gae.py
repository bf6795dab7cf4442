"""Generalised advantage estimation: a pure function of tensors, without gradient.

Schulman et al. 2016 (arXiv:1506.02438), equation 16, as a recursion:

    delta_t = m_t (r_t + d_t V(x_{t+1}) - V(x_t))
    A_t = m_t (delta_t + d_t lambda A_{t+1}),  A_T = 0,  G_t = V(x_t) + A_t

m_t = 0 where a step may not be used, such as an autoreset row. A truncated step needs nothing else: row t+1 holds the final
observation of the episode, so V(x_{t+1}) is the value to bootstrap from, and A_{t+1} = 0 because that row is masked. With
lambda = 1 the target G_t is the longest n-step return of A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agents.returns.vtrace import accumulate_backwards
from replay.batch import Batch


class Advantages(NamedTuple):
    """Estimates for one batch of trajectories; neither carries a gradient.

    advantages: `[T, B]` A_t, 0 where a step is masked.
    targets: `[T, B]` value targets G_t, equal to V(x_t) where a step is masked.
    """

    advantages: Tensor
    targets: Tensor


@torch.no_grad()
def gae(
    *, rewards: Tensor, discounts: Tensor, values: Tensor, bootstrap_value: Tensor, lambda_: float, mask: Tensor
) -> Advantages:
    """Advantages and value targets. Raises ValueError for shapes that differ or a lambda outside [0, 1].

    Args:
        rewards: `[T, B]` already clipped or scaled, if they are to be. A masked step's may be anything.
        discounts: `[T, B]` gamma, 0 where step t terminated its episode.
        values: `[T, B]` V(x_t), t < T.
        bootstrap_value: `[B]` V(x_T).
        lambda_: decay of the trace, 0 to 1.
        mask: bool `[T, B]` m_t, true where the step may be used.
    """
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_: wanted 0 to 1, got {lambda_}")
    if rewards.dim() != 2 or len(rewards) < 1:
        raise ValueError(f"rewards: wanted [T, B] with T >= 1, got {list(rewards.shape)}")
    for name, tensor in (("discounts", discounts), ("values", values), ("mask", mask)):
        if tensor.shape != rewards.shape:
            raise ValueError(f"{name}: wanted {list(rewards.shape)} as rewards, got {list(tensor.shape)}")
    if bootstrap_value.shape != rewards.shape[1:]:
        raise ValueError(f"bootstrap_value: wanted {list(rewards.shape[1:])}, got {list(bootstrap_value.shape)}")
    # The value after step t is that of row t + 1, also at a time limit: its next row holds the final observation.
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])  # [T, B], V(x_{t+1})
    # `where` and not a product: the reward of an ignored action may be anything, also not a number.
    errors = torch.where(mask, rewards + discounts * next_values - values, 0.0)  # delta_t [T, B]
    # A masked step has decay 0, which also keeps the next episode's advantages out of this one's.
    advantages = accumulate_backwards(errors, torch.where(mask, lambda_ * discounts, 0.0))  # A_t [T, B]
    return Advantages(advantages, advantages + values)  # G_t = A_t + V(x_t)


def advantages_of(batch: Batch, values: Tensor, gamma: float, lambda_: float) -> Advantages:
    """Advantages and value targets of a batch. Rows whose action was ignored, such as autoreset rows, have advantage 0.

    Args:
        batch: with the rewards that are learned from.
        values: `[T+1, B]`, constants; the last row bootstraps.
        gamma: discount per step.
        lambda_: decay of the trace, 0 to 1.
    """
    return gae(
        rewards=batch.rewards,
        # Only a termination has no future. After a time limit the value of the final observation follows, in the next row.
        discounts=gamma * (~batch.terminated).to(values.dtype),  # d_t [T, B]
        values=values[:-1],
        bootstrap_value=values[-1],
        lambda_=lambda_,
        mask=batch.action_used,
    )
