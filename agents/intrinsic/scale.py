"""The scale of intrinsic rewards: the standard deviation of a filter F that runs over the steps of each environment.

    F <- gamma_I F + raw_t  over the used steps of an environment, also across the ends of episodes, and never reset
    r_t = raw_t / sqrt(Var F),  the batch's F merged first, no mean taken off

(RND, arXiv:1810.12894, section 2.4, and its published code.) A replayed column is scaled alike, but not folded in again: its
steps were counted when they were fresh.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agents.networks.statistics import Moments, RunningMoments, moments_of

_ROUNDING = 2.0**-24
"""Largest relative error of a number in float32: a deviation below it is that of rounding."""


def deviation_or(moments: Moments, otherwise: float) -> Tensor:
    """sqrt(variance) `[F]`, and another number for a feature that has not varied so far."""
    variance = moments.variance
    varies = variance > (_ROUNDING * moments.mean).square()
    return torch.where(varies, variance, otherwise**2).sqrt()


class RewardFilter(RunningMoments):
    """F of each environment, and the moments of all F so far.

    Args:
        environments: of all learners.
        gamma: gamma_I.
        device: of rewards.

    Attributes:
        filtered: F of each environment, float64 `[environments]`.
    """

    def __init__(self, environments: int, gamma: float, device: torch.device) -> None:
        super().__init__(1, device)
        self._gamma = gamma
        self.filtered = torch.zeros(environments, dtype=torch.float64, device=device)
        self._next: tuple[Moments, Tensor] | None = None

    @torch.no_grad()
    def scaled(self, raw: Tensor, counted: Tensor, environments: Tensor) -> Tensor:
        """raw / sqrt(Var F) `[T, B]`. `settle` keeps or drops the batch's part of F.

        Args:
            raw: `[T, B]`, 0 or more where a step is used.
            counted: bool `[T, B]`, the used steps of fresh columns.
            environments: int `[B]`, numbers of the columns' environments. Columns of one environment are in order of time.
        """
        steps, changes = self.fold(raw, counted, environments)
        moments = self.with_batch(moments_of(steps.reshape(-1, 1), counted.flatten()))
        changes = self.collectives.gather(changes).sum(0)  # each environment belongs to one learner
        self._next = moments, self.filtered + changes
        return (raw / deviation_or(moments, 1.0)).to(raw.dtype)

    def fold(self, raw: Tensor, counted: Tensor, environments: Tensor) -> tuple[Tensor, Tensor]:
        """F after each step, float64 `[T, B]`, and the change of F of each environment, `[environments]`."""
        count = len(self.filtered) // self.collectives.count
        places = self.collectives.rank * count + environments.long() % count  # [B]
        steps, now = [], torch.zeros(raw.shape[1], dtype=torch.float64, device=raw.device)
        for row, used in zip(raw.double(), counted, strict=True):
            now = torch.where(used, self._gamma * now + row, now)  # F of columns that begin with 0, [B]
            steps.append(now)
        # A batch may hold several trajectories of one environment. Each continues from the ones before it: with k_b used steps
        # in column b, its start is gamma^(sum of k before) F + sum of earlier columns' own parts, decayed by the k between.
        used_steps = counted.sum(0, dtype=torch.float64)  # k [B]
        alike = places[:, None] == places[None, :]
        earlier = alike.tril(-1).double()  # [B, B], 1 if the second column precedes the first
        before = earlier @ used_steps  # used steps of earlier columns, [B]
        between = (before[:, None] - before[None, :] - used_steps[None, :]).clamp(min=0.0)
        starts = self._gamma**before * self.filtered[places] + (earlier * self._gamma**between) @ now  # [B]
        counts = counted.cumsum(0, dtype=torch.float64)  # used steps up to each row, [T, B]
        filtered = torch.stack(steps) + self._gamma**counts * starts
        last = ~alike.triu(1).any(1)  # no later column of the same environment, [B]
        ends = torch.where(last, filtered[-1] - self.filtered[places], 0.0)
        return filtered, torch.zeros_like(self.filtered).index_add(0, places, ends)

    def settle(self, applied: Tensor | None) -> None:
        """Keep the last batch's part of F if `applied`, bool `[]` on the device, is true. None stands for true."""
        assert self._next is not None
        moments, filtered = self._next
        self.take(moments, applied)
        self.filtered.copy_(filtered if applied is None else torch.where(applied, filtered, self.filtered))

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "filtered": self.filtered}

    def check_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().check_state_dict(state)
        got = state.get("filtered")
        if not isinstance(got, Tensor) or got.dim() != 1 or got.dtype != torch.float64:
            raise ValueError("wanted filtered of intrinsic rewards as float64 [environments], got another")

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned. Environments that were not there begin with F = 0."""
        saved = state["filtered"]
        self.take(Moments(*(state[name] for name in Moments._fields)))
        self.filtered.zero_()
        count = min(len(saved), len(self.filtered))
        self.filtered[:count].copy_(saved[:count])
