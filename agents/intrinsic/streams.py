"""Returns of intrinsic rewards, by the agent's own estimator.

A non-episodic return goes on over the ends of episodes, from each used step to the next used one, and to x_T behind the last
(RND, arXiv:1810.12894, section 2.3). So the used steps of each column are moved together, without terminations, and the
estimator sees nothing of the rows between them: gamma is not applied twice at an autoreset row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from replay.batch import Batch


@dataclass(frozen=True)
class IntrinsicStream:
    """Intrinsic rewards and values as an agent's estimator takes them.

    batch: with intrinsic rewards. values: `[T+1, B]`, V_I(x_t), constants. gamma: gamma_I. places: int64 `[T, B]`, the row to
    which each step has moved; None if rows are where they were.
    """

    batch: Batch
    values: Tensor
    gamma: float
    places: Tensor | None = None

    def rows(self, steps: Tensor) -> Tensor:
        """Numbers of steps `[T, B]`, moved as the stream's are."""
        return steps if self.places is None else torch.zeros_like(steps).scatter(0, self.places, steps)

    def back(self, steps: Tensor) -> Tensor:
        """The inverse of `rows`."""
        return steps if self.places is None else steps.gather(0, self.places)


def stream_of(batch: Batch, rewards: Tensor, values: Tensor, gamma: float, *, episodic: bool) -> IntrinsicStream:
    """The stream of a batch. rewards: `[T, B]`. values: `[T+1, B]`. episodic: whether returns are cut where episodes end."""
    if episodic:
        return IntrinsicStream(replace(batch, rewards=rewards), values, gamma)
    used = batch.action_used
    count = used.sum(0)  # [B]
    places = torch.where(used, used.cumsum(0) - 1, count + (~used).cumsum(0) - 1)  # used steps first, each kind in order
    moved = torch.zeros_like(values).scatter(0, places, values[:-1])
    # V(x_T) follows the last used step. Rows behind it are in no return.
    follows = torch.arange(len(values), device=values.device)[:, None] >= count
    stream = IntrinsicStream(batch, torch.where(follows, values[-1], moved), gamma, places)
    continuing = replace(
        batch,
        rewards=stream.rows(rewards),
        terminated=torch.zeros_like(batch.terminated),
        action_used=stream.rows(used),
    )
    return replace(stream, batch=continuing)
