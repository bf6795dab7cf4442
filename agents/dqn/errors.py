"""Losses and temporal differences of a batch of transitions, for each way to represent values. Pure functions.

Each returns the loss of each transition, with gradient, and the size of its temporal difference, by which prioritised replay
draws it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.networks.q_network import (
    C51,
    HL_GAUSS,
    IMPLICIT,
    NO_DISTRIBUTION,
    QUANTILES,
    Output,
    best_choices,
    chosen_values,
)
from agents.values.categorical import cross_entropy, divergence, project
from agents.values.hl_gauss import bin_probabilities
from agents.values.implicit import implicit_priorities, implicit_quantile_loss
from agents.values.q_learning import huber, q_targets
from agents.values.quantiles import quantile_loss


class Errors(NamedTuple):
    """losses: `[B]`, with gradient. sizes: of the temporal differences, `[B]`, constants."""

    losses: Tensor
    sizes: Tensor


class NStepTransitions(NamedTuple):
    """The actions taken and n-step returns of B windows, without their observations.

    choices: int64 `[B, D]`, the actions taken. returns: G, `[B]`. discounts: D, `[B]`.
    """

    choices: Tensor
    returns: Tensor
    discounts: Tensor


def expected_targets(steps: NStepTransitions, target: Output, selecting: Output, counts: tuple[int, ...]) -> Tensor:
    """y = G + D Q'(x', a'), `[B]`. The value of an action is the mean over its components.

    Args:
        steps: G and D.
        target: of the target network at x'.
        selecting: of the network that selects the next action, at x'.
        counts: values of each component.
    """
    # Without double learning `selecting` is the target network's own output, so this is its largest value.
    best = best_choices(selecting.q, counts)  # a' [B, D]
    return q_targets(steps.returns, steps.discounts, chosen_values(target.q, best, counts).mean(-1))  # [B, D] -> [B]


def expected_errors(online: Output, targets: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Errors:
    """The Huber loss of the values. Several components share one target; their losses and errors are averaged.

    Args:
        online: of the network that learns at x_t, with gradient.
        targets: y, `[B]`.
        choices: int64 `[B, D]`, the actions taken.
        counts: values of each component.
    """
    # Each component learns the value of the whole action.
    errors = targets.unsqueeze(-1) - chosen_values(online.q, choices, counts)  # y - Q_d(x_t, a_d), [B, D]
    return Errors(huber(errors).mean(-1), errors.detach().abs().mean(-1))


def categorical_targets(steps: NStepTransitions, target: Any, selecting: Output, atoms: Tensor) -> Tensor:
    """C51: the probabilities m of the atoms, `[B, K]`. atoms: float32 `[K]`, their values. Others as for `expected_targets`."""
    # Expected values select the action; the target is the whole distribution of that action's return.
    probabilities = torch.softmax(_of_action(target.atoms, selecting.q.argmax(-1)), -1)  # p'(x', a') [B, K]
    return project(steps.returns, steps.discounts, probabilities, atoms)


def categorical_errors(online: Any, targets: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Errors:
    """C51: the cross-entropy. The priority is the KL divergence, as in Rainbow (Hessel et al. 2018, arXiv:1710.02298).

    targets: `[B, K]`, see `categorical_targets`. choices: of one component. Others as for `expected_errors`.
    """
    losses = cross_entropy(targets, _of_action(online.atoms, choices.squeeze(-1)))  # [B]
    # Loss and divergence have one gradient. A cross-entropy as priority would never fall below the entropy of m.
    return Errors(losses, divergence(targets, losses.detach()))


def quantile_targets(steps: NStepTransitions, quantiles: Tensor, selecting: Output) -> Tensor:
    """QR-DQN, IQN: y_j = G + D theta'_j(x', a'), `[B, M]`, without gradient.

    Args:
        steps: G and D.
        quantiles: theta' `[B, A, M]` of the target network at x'.
        selecting: of the network that selects the next action, at x'.
    """
    following = _of_action(quantiles, selecting.q.argmax(-1))  # theta'(x', a') [B, M]
    return q_targets(steps.returns.unsqueeze(-1), steps.discounts.unsqueeze(-1), following)


def quantile_errors(online: Any, targets: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Errors:
    """QR-DQN: the quantile Huber loss. The difference of the means is the priority.

    targets: `[B, K]`, see `quantile_targets`. choices: of one component. Others as for `expected_errors`.
    """
    quantiles = _of_action(online.atoms, choices.squeeze(-1))  # theta(x_t, a_t) [B, K]
    return Errors(quantile_loss(quantiles, targets), (targets.mean(-1) - quantiles.detach().mean(-1)).abs())


def implicit_errors(online: Any, targets: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Errors:
    """IQN: the quantile Huber loss at the drawn fractions of `online`. All absolute differences make the priority.

    targets: `[B, M]`, see `quantile_targets`. choices: of one component. Others as for `expected_errors`.
    """
    quantiles = _of_action(online.atoms, choices.squeeze(-1))  # theta(tau; x_t, a_t) [B, K]
    return Errors(implicit_quantile_loss(quantiles, online.fractions, targets), implicit_priorities(quantiles, targets))


def histogram_targets(targets: Tensor, edges: Tensor) -> Tensor:
    """HL-Gauss: y, cut to the edges, and the probabilities p of the N bins, `[B, 1 + N]`.

    Args:
        targets: y `[B]`, scalar targets as in `expected_targets`.
        edges: `[N + 1]`, of the bins.
    """
    inside = targets.clamp(edges[0], edges[-1])  # a priority beyond the edges could never fall
    return torch.cat([inside.unsqueeze(-1), bin_probabilities(inside, edges)], -1)


def histogram_errors(online: Any, targets: Tensor, choices: Tensor, counts: tuple[int, ...]) -> Errors:
    """HL-Gauss: the cross-entropy. The priority is the temporal difference.

    targets: `[B, 1 + N]`, see `histogram_targets`. choices: of one component. Others as for `expected_errors`.
    """
    logits = _of_action(online.atoms, choices.squeeze(-1))  # [B, N]
    errors = targets[:, :1] - chosen_values(online.q.detach(), choices, counts)  # [B, 1]
    return Errors(cross_entropy(targets[:, 1:], logits), errors.squeeze(-1).abs())


def clipped_share(targets: Tensor, edges: Tensor) -> Tensor:
    """HL-Gauss: the share of targets at or beyond the ends of the bins, a scalar. Arguments as `histogram_targets` has them."""
    return ((targets[:, 0] <= edges[0]) | (targets[:, 0] >= edges[-1])).float().mean()


def _of_action(atoms: Tensor, actions: Tensor) -> Tensor:
    """The atoms of one action each, `[B, K]`. atoms: `[B, P, K]`. actions: int64 `[B]`."""
    return atoms.gather(1, actions.view(-1, 1, 1).expand(-1, 1, atoms.shape[-1])).squeeze(1)


ERRORS: dict[str, Callable[[Any, Tensor, Tensor, tuple[int, ...]], Errors]] = {
    NO_DISTRIBUTION: expected_errors,
    C51: categorical_errors,
    QUANTILES: quantile_errors,
    IMPLICIT: implicit_errors,
    HL_GAUSS: histogram_errors,
}
"""Value of the setting `return_distribution` -> the errors of outputs `online` against targets, for choices `[B, D]`."""
