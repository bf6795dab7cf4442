"""Targets and losses of Q-learning, as pure functions. Values of all actions are `[..., A]`; other tensors are `[...]`.

    plain     y = G + D max_a Q'(x', a)                        (DQN, Mnih et al. 2015, doi:10.1038/nature14236)
    double    y = G + D Q'(x', argmax_a Q(x', a))              (van Hasselt et al. 2016, arXiv:1509.06461)
    loss      mean of w Huber_1(y - Q(x_t, a_t))

G and D are the return and the discount of a window of n steps, and x' is the observation behind it (`agents.returns.nstep`).
Q' is the target network. No gradient passes through y.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

HUBER_DELTA = 1.0


def value_of(q_values: Tensor, actions: Tensor) -> Tensor:
    """The values of the actions taken, `[...]`. q_values: `[..., A]`. actions: int64 `[...]`."""
    return q_values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def q_targets(returns: Tensor, discounts: Tensor, values: Tensor) -> Tensor:
    """y = G + D V(x'), `[...]`, without gradient. values: `[...]`, V(x')."""
    return (returns + discounts * values).detach()  # semi-gradient: Q moves to y, and y not to Q


def huber(errors: Tensor, delta: float = HUBER_DELTA) -> Tensor:
    """0.5 e^2 up to |e| = delta, and a line from there on, for errors of any shape."""
    # Its slope is the error, cut to +-delta as DQN cuts it.
    return functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=delta)


def weighted_mean(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of w * loss over all entries, a scalar. Published settings of this family hold for the mean.

    Args:
        losses: `[B]`.
        weights: `[B]`, importance weights w of prioritised replay; None for 1.
    """
    return (losses if weights is None else weights * losses).mean()


def munchausen_targets(
    returns: Tensor,
    discounts: Tensor,
    actions: Tensor,
    target_values: Tensor,
    next_target_values: Tensor,
    *,
    temperature: float,
    weight: float,
    lowest: float,
    next_quantiles: Tensor | None = None,
) -> Tensor:
    """Munchausen Q-learning: the reward gains a part of the action's log-probability, and the next value is a soft one.

        y = G + weight * clip(tau log pi(a_t|x_t), lowest, 0) + D sum_a pi(a|x') (Q'(x', a) - tau log pi(a|x'))

    pi is the softmax of Q' / tau. With quantiles theta'_j in the place of Q' inside the sum, y_j is a quantile of the target.
    In a window of several steps only the first row's action adds its log-probability. Source: Vieillard et al. 2020
    (arXiv:2007.14430), equation 2.

    Args:
        returns: G, `[B]`.
        discounts: D, `[B]`.
        actions: int64 `[B]`.
        target_values: `[B, A]` of the target network at x_t; illegal actions have very low values.
        next_target_values: `[B, A]` of the target network at x'.
        temperature: tau, in units of the values.
        weight: of the log-probability.
        lowest: bound of tau log pi from below.
        next_quantiles: theta' `[B, A, M]` of the target network at x'; None for expected values.

    Returns y `[B]`, or `[B, M]` for quantiles, without gradient.
    """
    # Bounded from below, or one unlikely action would outweigh all rewards.
    taken = value_of(_scaled_log_policy(target_values, temperature), actions).clamp(lowest, 0.0)  # [B]
    log_policy = _scaled_log_policy(next_target_values, temperature).unsqueeze(-1)  # tau log pi(.|x'), [B, A, 1]
    policy = torch.softmax(next_target_values / temperature, -1).unsqueeze(-1)  # pi(.|x'), [B, A, 1]
    following = next_target_values.unsqueeze(-1) if next_quantiles is None else next_quantiles  # [B, A, 1 or M]
    # An action without probability adds nothing, however low its value and its log-probability are.
    soft = torch.where(policy > 0, policy * (following - log_policy), 0.0).sum(1)  # [B, 1 or M]
    # The target network gives both terms, so y is constant.
    targets = q_targets((returns + weight * taken).unsqueeze(-1), discounts.unsqueeze(-1), soft)
    return targets.squeeze(-1) if next_quantiles is None else targets


def _scaled_log_policy(values: Tensor, temperature: float) -> Tensor:
    """tau log pi of the softmax of values `[..., A]` / tau."""
    return temperature * torch.log_softmax(values / temperature, -1)  # not log(softmax): a small tau makes most pi underflow
