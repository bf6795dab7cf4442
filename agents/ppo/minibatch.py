"""The minibatches of PPO: parts of one batch with all that is constant during the update.

A row t of column b is a step. Single steps are gathered once an epoch, in the epoch's order, so that each minibatch is a view.
If there is one minibatch only, no order is drawn, and every epoch has the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from agents.engine.stepper import Stepper
from agents.metrics import value_metrics
from agents.minibatches import cut, normalised_runs, shuffled, take_steps, used_steps
from agents.networks.actor_critic import PolicyNetwork, drawn_actions
from agents.networks.cores import NO_CORE
from agents.networks.settings import NetworkSettings
from agents.returns.advantages import normalised
from agents.returns.gae import advantages_of
from agents.surrogate import RatioBounds, ratio_bounds
from replay.batch import Batch

Normalisation = Literal["minibatch", "batch", "none"]


class Rows(NamedTuple):
    """Constants of the rows 0 to T-1 of a batch, `[T, B, ...]` each.

    Args:
        observations: `[T, B, *observation_shape]`.
        behaviour: `[T, B, P]`, parameters of the policy that acted.
        drawn: the drawn values of the actions taken.
        log_mu: `[T, B]`, their log-probabilities under the policy that acted.
        old_values: `[T, B]`, V(x_t) before the update, normalised by PopArt if it is on, as the targets are.
        advantages: `[T, B]`.
        targets: `[T, B]` value targets.
        intrinsic_targets: `[T, B]`, those of the value of intrinsic rewards; None without any.
    """

    observations: Tensor
    behaviour: Tensor
    drawn: Tensor
    log_mu: Tensor
    old_values: Tensor
    advantages: Tensor
    targets: Tensor
    intrinsic_targets: Tensor | None = None


@torch.no_grad()
def rows_of(batch: Batch, outputs: Any, network: PolicyNetwork, config: Any, step: Stepper) -> tuple[Rows, dict[str, Tensor]]:
    """The constants of an update, and metrics of its values.

    Args:
        batch: with the rewards that are learned from.
        outputs: of the network before the update, for T+1 rows.
        network: with the distribution of the actions.
        config: with the discount and lambda.
        step: with the units of values and advantages in the losses, and with intrinsic rewards.
    """
    behaviour, drawn = batch.acting["behaviour_policy"], drawn_actions(batch.actions, batch.acting)
    values = outputs.values  # [T+1, B]
    advantages, targets = advantages_of(batch, values, config.gamma, config.gae_lambda)  # A_t and G_t, [T, B] each
    metrics = value_metrics(values[:-1], targets, batch.action_used)
    # From stored parameters by the learner's own code, so that the first ratio is 1 but for rounding.
    log_mu = network.distribution.log_prob(behaviour, drawn)
    # Row T has a value to bootstrap from, but no action, so minibatches are made of rows 0 to T-1.
    tasks, used = network.task_of_columns(batch.observations) if step.popart else None, batch.action_used  # [B], [T, B]
    old_values, targets, advantages = step.units.in_losses(values[:-1], targets, advantages, used, tasks)  # [T, B] each
    intrinsic_targets = None
    if step.intrinsic:
        advantages, intrinsic_targets = step.intrinsic.combined(
            batch, outputs, advantages, lambda part: advantages_of(part.batch, part.values, part.gamma, config.gae_lambda)
        )
    rows = Rows(batch.observations[:-1], behaviour, drawn, log_mu, old_values, advantages, targets, intrinsic_targets)
    return rows, metrics


def takes_columns(config: Any, network: NetworkSettings) -> bool:
    """Whether minibatches are made of whole trajectories. Raises ValueError for single steps of a network with a core."""
    if network.core != NO_CORE and config.minibatch_unit == "steps":
        raise ValueError(
            f"minibatch_unit: wanted columns or auto with --core={network.core}, whose memory links steps, got steps"
        )
    return network.core != NO_CORE or config.minibatch_unit == "columns"


def most_minibatches(batch: Batch, parts: int, *, columns: bool) -> int:
    """The most minibatches of an epoch: fewer are made if steps or columns of the batch are not used."""
    return min(parts, batch.action_used.shape[1] if columns else batch.action_used.numel())


@dataclass(frozen=True)
class Minibatch:
    """The part of a batch that one step learns from.

    Args:
        rows: of n steps, `[n, ...]` each, or of b whole columns, `[T, b, ...]` each.
        bounds: of the log-ratios, of the advantages' shape.
        mask: bool `[T, b]`, the used steps; None if all are used.
        recurrent_state: `[b, K]`, before row 0; None without a core.
        reset: bool `[T-1, b]`; None without a core.
    """

    rows: Rows
    bounds: RatioBounds
    mask: Tensor | None = None
    recurrent_state: Tensor | None = None
    reset: Tensor | None = None
    overlap: ClassVar[int] = 0
    whole: ClassVar[None] = None

    @property
    def observations(self) -> Tensor:
        return self.rows.observations

    def filled_up(self, size: int) -> Minibatch:
        """The same with `size` rows, of which the mask leaves out those that were added. Whole columns stay as they are."""
        if self.mask is not None:
            return self
        count, device = len(self.rows.log_mu), self.rows.log_mu.device
        order = torch.arange(size, device=device)
        mask = order < count  # [size], false for the rows that are added
        if count == size:
            return replace(self, mask=mask)
        order = torch.where(mask, order, 0)  # added rows repeat row 0, whose second loss the mask leaves out
        rows = Rows(*(take_steps(tensor[None], order) for tensor in self.rows if tensor is not None))
        return replace(self, rows=rows, bounds=RatioBounds(*(bound.index_select(0, order) for bound in self.bounds)), mask=mask)

    @property
    def used(self) -> Tensor | int:
        """The mask of the used steps, or their number if all are used."""
        return self.rows.log_mu.numel() if self.mask is None else self.mask


@dataclass(frozen=True)
class Clipping:
    """How log-ratios are bounded in this update; see `agents.surrogate.ratio_bounds`."""

    clip: float | None
    dual_clip: float | None

    def bounds(self, advantages: Tensor) -> RatioBounds:
        return ratio_bounds(advantages, self.clip, self.dual_clip)


def epochs_of(
    rows: Rows, batch: Batch, parts: int, normalisation: Normalisation, clipping: Clipping, *, columns: bool
) -> Iterator[Iterable[Minibatch]]:
    """The minibatches of each epoch, without end, of whole columns or of single steps. Arguments as for `epochs_of_columns`."""
    shared = (rows, batch.action_used, parts, normalisation, clipping)
    return epochs_of_columns(*shared, batch.recurrent_state, batch.reset) if columns else epochs_of_steps(*shared)


def epochs_of_steps(
    rows: Rows, used: Tensor, parts: int, normalisation: Normalisation, clipping: Clipping
) -> Iterator[Iterable[Minibatch]]:
    """The minibatches of each epoch, without end, of single used steps in random order.

    Args:
        rows: of the batch.
        used: bool `[T, B]`. A masked row is never drawn.
        parts: how many minibatches an epoch has.
        normalisation: `minibatch` normalises the advantages of each; the others leave them as they are.
        clipping: of this update.
    """
    return _epochs(used_steps(used), parts, lambda order: _of_steps(rows, order, parts, normalisation, clipping))


def epochs_of_columns(
    rows: Rows,
    used: Tensor,
    parts: int,
    normalisation: Normalisation,
    clipping: Clipping,
    state: Tensor | None,
    reset: Tensor,
) -> Iterator[Iterable[Minibatch]]:
    """The minibatches of each epoch, without end, of whole columns in random order. Columns without a used step are left out.

    Args:
        rows, used, parts, normalisation, clipping: as for `epochs_of_steps`. Masked rows carry the state, but are in no loss.
        state: `[B, K]`, before row 0; None without a core.
        reset: bool `[T, B]`, where observation t+1 is an episode's first.
    """

    def minibatch(columns: Tensor) -> Minibatch:
        taken = Rows(*(tensor.index_select(1, columns) for tensor in rows if tensor is not None))  # [T, b, ...] each
        mask = used.index_select(1, columns)  # [T, b]
        if normalisation == "minibatch":
            # Bounds come after this: normalisation may change the sign of A_t, on which the side of the clip depends.
            taken = taken._replace(advantages=normalised(taken.advantages, mask))
        # A column begins with the state that acting had. It has rows 0 to T-1, so the reset before row T is left out.
        of_core = (None, None) if state is None else (state[columns], reset[:-1].index_select(1, columns))
        return Minibatch(taken, clipping.bounds(taken.advantages), mask, *of_core)

    members = used.any(0).nonzero().squeeze(-1)  # int64 [columns with a used step]
    return _epochs(members, parts, lambda order: (minibatch(columns) for columns in cut(order, parts)))


def _epochs(members: Tensor, parts: int, minibatches: Callable[[Tensor], Iterable[Minibatch]]) -> Iterator[Iterable[Minibatch]]:
    """Epochs without end. minibatches: those of an epoch that takes the members in the given order."""
    if parts == 1:
        only = list(minibatches(members))  # the gradient of a whole batch has no order, so none is drawn
        while True:
            yield only
    while True:
        yield minibatches(shuffled(members))


def _of_steps(rows: Rows, order: Tensor, parts: int, normalisation: Normalisation, clipping: Clipping) -> Iterator[Minibatch]:
    """order: t * B + b of the used steps, int64 `[n]`."""
    gathered = Rows(
        *(take_steps(tensor, order) for tensor in rows if tensor is not None)
    )  # [n, ...] each, in the epoch's order
    if normalisation == "minibatch":
        # Behind the shuffle, so that each minibatch has a mean and a deviation of its own.
        gathered = gathered._replace(advantages=normalised_runs(gathered.advantages, parts))
    bounds = clipping.bounds(gathered.advantages)  # low and high, [n] each
    sizes = [len(run) for run in cut(order, parts)]
    tensors = [tensor for tensor in gathered if tensor is not None]
    columns = [tensor.split(sizes) for tensor in (*tensors, *bounds)]  # views: no minibatch is copied
    for each in zip(*columns, strict=True):
        yield Minibatch(Rows(*each[: len(tensors)]), RatioBounds(*each[len(tensors) :]))
