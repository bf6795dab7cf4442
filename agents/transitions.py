"""Transitions: what the agents that learn from windows of replayed rows learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from agents.returns.nstep import n_step
from agents.rewards import clip_rewards
from replay.batch import Batch


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
            yield part._replace(weights=part.weights / part.weights.amax())


@torch.no_grad()
def transitions(batch: Batch, *, gamma: float, reward_clipping: str | None = None) -> Transitions:
    """The transitions of a batch of windows, whose first rows are actions that were used.

    Args:
        batch: B windows of n rows, and one observation more.
        gamma: discount per step.
        reward_clipping: a name of `agents.rewards.REWARD_CLIPPING`, or None for raw rewards.
    """
    # A window ends early where an episode does; its discount is 0 only if the episode terminated.
    found = n_step(clip_rewards(batch.rewards, reward_clipping), batch.terminated, batch.action_used, gamma)
    if len(batch.rewards) == 1:
        following = batch.observations[1]
    else:  # a window ends early at the end of an episode or of its trajectory, so each has a row of its own to bootstrap from
        following = batch.observations[found.rows, torch.arange(len(found.rows), device=found.rows.device)]
    weights = torch.ones_like(found.returns) if batch.weights is None else batch.weights
    return Transitions(batch.observations[0], batch.actions[0], found.returns, found.discounts, following, weights)
