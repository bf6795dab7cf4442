"""Reward clipping and scaling: the learner's own view of raw rewards.

Trajectories store raw rewards, summed over the frames that a step skips. Clipping and scaling see only that sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from agents.networks.inputs import CLIP
from agents.networks.statistics import Moments, RunningMoments, moments_of
from replay.batch import Batch

_SOFT_SCALE = 5.0
_SOFT_NEGATIVE_FACTOR = 0.3


def abs_one_clamp(rewards: Tensor) -> Tensor:
    """Each reward of any shape, cut to -1 .. 1, as IMPALA (arXiv:1802.01561) does on Atari."""
    return rewards.clamp(-1.0, 1.0)


def soft_asymmetric(rewards: Tensor) -> Tensor:
    """5 tanh(r/5) of each reward of any shape, losses at 0.3 of that, so that they weigh less than gains.

    This is what IMPALA's published code computes; figure D.1 of the paper prints another formula.
    """
    squeezed = _SOFT_SCALE * torch.tanh(rewards / _SOFT_SCALE)  # 5 tanh(r / 5)
    return torch.where(rewards < 0, _SOFT_NEGATIVE_FACTOR * squeezed, squeezed)


abs_one_sign = torch.sign
"""The sign of each reward of any shape: -1, 0 or 1."""
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


class RewardScale:
    """Divides rewards by the running standard deviation of their discounted sum over the episode so far.

    The moments are those of `Batch.discounted_returns`. No mean is taken off, since that would change the task. A batch is
    merged first and then scaled by the new value. Replayed columns are scaled alike, but not merged.
    """

    def __init__(self, device: torch.device) -> None:
        self.moments = RunningMoments(1, device)
        self._next: Moments | None = None

    @torch.no_grad()
    def scaled(self, batch: Batch) -> Batch:
        """The batch with scaled rewards, clipped at 10. `settle` keeps or drops its part of the moments."""
        assert batch.discounted_returns is not None
        # [T, B] & [B]. Replayed columns were merged when they were fresh, so each step counts once.
        counted = batch.action_used & ~batch.is_replay  # a step whose action was ignored belongs to no return
        fresh = moments_of(batch.discounted_returns.reshape(-1, 1), counted.flatten())
        # The batch counts before it is scaled, but only `settle` keeps it: a refused step leaves the moments as they were.
        self._next = self.moments.with_batch(fresh)
        return replace(batch, rewards=(batch.rewards / self._next.deviation).clamp(-CLIP, CLIP).to(batch.rewards.dtype))

    def settle(self, applied: Tensor) -> None:
        """Keep the moments of the last batch if its update was applied. applied: bool `[]` on the device."""
        assert self._next is not None
        self.moments.take(self._next, applied)
