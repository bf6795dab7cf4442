"""Returns of n steps out of windows of rows (Sutton 1988, doi:10.1007/BF00115009; used by Rainbow, arXiv:1710.02298).

A batch has B windows of n consecutive rows, drawn from all stored rows, uniformly or by their priorities. Each window becomes
one transition: the observation and action of its first row, the discounted sum of its rewards, and the observation to bootstrap
from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.base import Needs
from replay.batch import Batch

REPLAY = '[{"type": "standard", "steps": 1000000, "sample_ratio": 1.0}]'
"""The usual replay: the newest million steps, drawn uniformly."""
DEFAULTS = {"batch_size": 256, "unroll_length": 8, "replay_fill_fraction": 0.0, "replay_parameters": REPLAY}
"""Defaults of settings that every run has. Short trajectories reach the replay soon."""


def needs_of_windows(config: Any) -> Needs:
    """The requirements of an agent that learns from windows. config: with the settings of `agents.settings` for them."""
    return Needs(
        window=config.n_step,
        updates_per_step=config.updates_per_step,
        learning_starts=config.learning_starts,
        batches_at_once=config.batches_at_once,
        priorities=True,
    )


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
    powers = gamma ** torch.arange(len(rewards) + 1, dtype=rewards.dtype, device=rewards.device)  # gamma^0 to gamma^n, [n+1]
    rows = alive.sum(0)  # m [B]
    kept = alive.bool()  # [n, B], the rows i < m of each window
    returns = (torch.where(kept, rewards, 0.0) * powers[:-1, None]).sum(0)  # G [B] = sum_{i<m} gamma^i r_{t+i}
    goes_on = ~(terminated & kept).any(0) & (rows > 0)  # on a row whose action was ignored, terminated means nothing
    # D = gamma^m with the window's own m. gamma^n would discount the value behind a short window too much.
    return NStep(returns, torch.where(goes_on, powers[rows], 0.0), rows)


class Transitions(NamedTuple):
    """N transitions.

    observations, next_observations: `[N, S, *frame_shape]`; next ones are those to bootstrap from. actions: `[N, *shape]`.
    returns: sums of discounted rewards, `[N]`. discounts: factor of the next observation's value, `[N]`, 0 if terminated.
    weights: importance weights of prioritised replay, which multiply the losses of the rows, `[N]`; 1 without priorities.
    """

    observations: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    next_observations: Tensor
    weights: Tensor

    def split(self, parts: int) -> Iterator[Transitions]:
        """Equal parts. Every replay of a mixture gives each part its share, and the largest weight of a part is 1."""
        for index in range(parts):
            part = Transitions(*(tensor[index::parts] for tensor in self))  # the columns of a replay stand together
            # The maximum is that of each optimiser step, as if its part had been drawn alone.
            yield part._replace(weights=part.weights / part.weights.amax())


@torch.no_grad()
def transitions(batch: Batch, gamma: float) -> Transitions:
    """The transitions of a batch of B windows of n rows, whose first rows are actions that were used. gamma: per step."""
    # A window ends early where an episode does; its discount is 0 only if the episode terminated.
    found = n_step(batch.rewards, batch.terminated, batch.action_used, gamma)
    if len(batch.rewards) == 1:
        following = batch.observations[1]  # [B, S, *F]
    else:  # a window ends early at the end of an episode or of its trajectory, so each has a row of its own to bootstrap from
        # x_{t+m} [B, S, *F]
        following = batch.observations[found.rows, torch.arange(len(found.rows), device=found.rows.device)]
    weights = torch.ones_like(found.returns) if batch.weights is None else batch.weights
    # The window's first row is the transition's; rows 1 to m-1 are in the return alone.
    return Transitions(batch.observations[0], batch.actions[0], found.returns, found.discounts, following, weights)
