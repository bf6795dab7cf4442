"""Terms of a loss, and the loss functions that several agents share. Those of V-trace are SUMMED over T and B.

Coefficients are not applied. Other agents take means (`used_mean`).

Sums, because IMPALA (arXiv:1802.01561) sums over the batch and time dimensions and its published learning rate, RMSProp
epsilon and clip norm hold for a sum. A step that a `mask` leaves out contributes nothing, whatever its numbers are; the
entropies that `weights` multiply must be finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Term(NamedTuple):
    """One term of a loss.

    value: a scalar `[]` with gradient. weight: a number, or a scalar `[]` on the device.
    reduction: whether the value is a sum over the batch's steps or a mean. The gradient is that of weight * value in either
    case; metrics show the value per step.
    parameters: the weights that the term changes, if not all. No weight belongs to two such terms, and each has its own clip.
    """

    value: Tensor
    weight: float | Tensor = 1.0
    reduction: Literal["sum", "mean"] = "mean"
    parameters: Sequence[Tensor] | None = None


class Losses(NamedTuple):
    """The terms that one optimiser step is taken on, and metrics.

    terms: by name. metrics: further scalars without gradient.
    priorities: sizes of the temporal differences of the batch's columns, constants `[B]`, by which a prioritised replay draws
    them again. None from an agent without them.
    """

    terms: Mapping[str, Term]
    metrics: Mapping[str, Tensor]
    priorities: Tensor | None = None


class ValuesInLosses(NamedTuple):
    """V, their targets G and the advantages A, in the units in which the losses compare them, each of the shape it came in."""

    values: Tensor
    targets: Tensor
    advantages: Tensor


class RawValues:
    """Units of values in the losses: those of the rewards. `agents.networks.popart.PopArt` has others."""

    def in_losses(
        self, values: Tensor, targets: Tensor, advantages: Tensor, used: Tensor, tasks: Tensor | None = None
    ) -> ValuesInLosses:
        """Values, targets and advantages `[T, B]` of an update as its losses take them.

        used: bool `[T, B]`, the steps whose targets count. tasks: int64 `[B]`, the task of each column; None if there is one.
        """
        return ValuesInLosses(values, targets, advantages)

    def normalised(self, values: Tensor, tasks: Tensor | None = None) -> Tensor:
        """(V - mu) / sigma of further values of any shape."""
        return values


def policy_gradient_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor | None = None) -> Tensor:
    """- sum m_t A_t log pi(a_t|x_t), a scalar.

    Args:
        log_probs: `[T, B]` of the actions taken under the target policy pi, with gradient (`Distribution.log_prob`).
        advantages: `[T, B]`, used as constants.
        mask: `[T, B]` bool, or float of 0 and 1: the steps that count. All by default.
    """
    _check_same_shape("log_probs", log_probs, advantages=advantages, mask=mask)
    return -masked_sum(advantages.detach() * log_probs, mask)  # its gradient is -sum m_t A_t grad log pi(a_t|x_t)


def value_loss(values: Tensor, vs: Tensor, mask: Tensor | None = None) -> Tensor:
    """0.5 sum m_t (v_t - V(x_t))^2, a scalar.

    Args:
        values: `[T, B]` V(x_t) with gradient.
        vs: `[T, B]` value targets, used as constants.
        mask: `[T, B]` bool, or float of 0 and 1: the steps that count. All by default.
    """
    _check_same_shape("values", values, vs=vs, mask=mask)
    # The target is detached: semi-gradient learning, V moves to the target and never the target to V.
    return 0.5 * masked_sum((vs.detach() - values).square(), mask)


def entropy_loss(entropies: Tensor, weights: Tensor | None = None) -> Tensor:
    """- sum w_t H(pi(.|x_t)), a scalar: adding it to the loss rewards entropy.

    Args:
        entropies: `[T, B]` of the target policy, with gradient (`Distribution.entropy`).
        weights: `[T, B]` bool or float w_t, all 1 by default.
    """
    _check_same_shape("entropies", entropies, weights=weights)
    return -(entropies if weights is None else entropies * weights).sum()


def masked_sum(terms: Tensor, mask: Tensor | None) -> Tensor:
    """Sum of terms `[T, B]` over the steps of the mask, all by default. A masked step may hold anything."""
    # `where` and not a product: 0 times a number that is not finite would not be 0.
    return terms.sum() if mask is None else torch.where(mask.bool(), terms, 0.0).sum()


def used_mean(steps: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over the steps of a mask, a scalar: for losses that are means instead of sums. 0 for a mask without any step.

    Args:
        steps: of any shape. A number outside the mask has no effect, even if it is not finite.
        mask: bool, of the same shape, the steps that count. All by default.
    """
    if mask is None:
        return steps.mean()
    # The divisor is the number of used steps, not T B. Otherwise masked rows would shrink the loss.
    return torch.where(mask, steps, 0.0).sum() / mask.sum().clamp(min=1)


def _check_same_shape(reference_name: str, reference: Tensor, **others: Tensor | None) -> None:
    if reference.dim() != 2:
        raise ValueError(f"{reference_name}: wanted [T, B], got {list(reference.shape)}")
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != reference.shape:
            raise ValueError(f"{name}: wanted {list(reference.shape)} as {reference_name}, got {list(tensor.shape)}")
