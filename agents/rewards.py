"""Reward clipping: the learner's own view of raw rewards.

Trajectories store raw rewards, summed over the frames that a step skips; what clips them sees only that sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SOFT_SCALE = 5.0
_SOFT_NEGATIVE_FACTOR = 0.3


def abs_one_sign(rewards: Tensor) -> Tensor:
    """The sign of each reward of any shape: -1, 0 or 1."""
    return rewards.sign()


def abs_one_clamp(rewards: Tensor) -> Tensor:
    """Each reward of any shape, cut to -1 .. 1, as IMPALA (arXiv:1802.01561) does on Atari."""
    return rewards.clamp(-1.0, 1.0)


def soft_asymmetric(rewards: Tensor) -> Tensor:
    """5 tanh(r/5) of each reward of any shape, losses at 0.3 of that, so that they weigh less than gains.

    This is what IMPALA's published code computes; figure D.1 of the paper prints another formula.
    """
    squeezed = _SOFT_SCALE * torch.tanh(rewards / _SOFT_SCALE)
    return torch.where(rewards < 0, _SOFT_NEGATIVE_FACTOR * squeezed, squeezed)


REWARD_CLIPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "abs_one_sign": abs_one_sign,
    "abs_one_clamp": abs_one_clamp,
    "soft_asymmetric": soft_asymmetric,
}


def clip_rewards(rewards: Tensor, method: str | None) -> Tensor:
    """Rewards of any shape under one of `REWARD_CLIPPING`; None leaves them raw."""
    if method is None:
        return rewards
    if method not in REWARD_CLIPPING:
        raise ValueError(f"reward clipping: wanted None or one of {sorted(REWARD_CLIPPING)}, got {method!r}")
    return REWARD_CLIPPING[method](rewards)
