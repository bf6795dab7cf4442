"""Collective operations: the places where numbers of all learners of a run become one.

Each learner has a batch of its own. Together they take the step that one learner would take on all batches. Every agent calls
the functions of `Collectives` in the same order on every learner, and equally often. `learner/ranks/group.py` has those of
several learners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from agents.losses import Term

Part = TypeVar("Part")
Used = Tensor | int | None
"""The steps that means of a loss are over: a bool mask of any shape, or their number. None: as many on every learner."""


class Collectives:
    """Collective operations of a run with one learner: nothing is changed and nothing is waited for.

    count: how many learners there are. rank: the number of this one.
    """

    count = 1
    rank = 0

    def weights(self, terms: Mapping[str, Term]) -> list[float | Tensor]:
        """The weight of each term in this learner's gradient."""
        return [term.weight for term in terms.values()]

    def add_gradients(
        self,
        parameters: Sequence[Tensor],
        numbers: Mapping[str, Tensor],
        used: Used = None,
        *,
        sums: bool = False,
        present: bool = True,
    ) -> dict[str, Tensor]:
        """Replace `grad` of each parameter by that of all learners' batches together. It comes before clipping.

        Gradients of sums are added. Gradients of means are averaged, weighted by the number of used steps. They are NaN if no
        learner is present, so that the step is refused.

        Args:
            parameters: the same on every learner. Those without a `grad` are left out.
            numbers: of this learner's step, of any shape, that must be finite.
            used: the steps that this learner's means are over.
            sums: whether the loss has terms that are sums. Its means are then weighted by `weights`.
            present: whether this learner has a part in the step. Its gradients are zeros if not.

        Returns:
            for each other learner its name and a scalar `[]`, which is finite exactly if all its numbers are.
        """
        return {}

    def turns(self, minibatches: Iterable[Part], most: int) -> Iterable[Part | None]:
        """The minibatches of this learner, then None for each that only other learners may have.

        most: the most minibatches that a learner has. Each takes part in so many steps, or the others would wait for it.
        """
        return minibatches

    def mean(self, mean: Tensor, used: Used) -> Tensor:
        """Means over the used steps of all learners, the same bits on each. mean: over this learner's `used`, of any shape."""
        return mean

    def gather(self, values: Tensor) -> Tensor:
        """The tensors `[n]` of all learners, `[count, n]` by rank."""
        return values[None]


def counted(used: Used, like: Tensor) -> Tensor:
    """The number of used steps as a scalar `[]` of the dtype and device of `like`; 1 for None."""
    if isinstance(used, Tensor):
        return used.sum().to(like.dtype)  # [], on the device: the host does not wait
    return torch.full((), 1 if used is None else used, dtype=like.dtype, device=like.device)
