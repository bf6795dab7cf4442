"""CLEAR's cloning losses (Rolnick et al. 2019, arXiv:1811.11682): on replayed data, stay close to the policy that acted.

Pure functions, SUMMED over time and the replayed columns, coefficients not applied. The direction KL(behaviour || current)
and the squared value difference follow three independent implementations that agree.
"""

from __future__ import annotations

from torch import Tensor


def policy_cloning_loss(divergences: Tensor, is_replay: Tensor) -> Tensor:
    """sum over t and replayed columns of KL(mu(.|x_t) || pi(.|x_t)).

    Args:
        divergences: `[T, B]`, KL of the policy mu that acted from the current policy pi, with gradient (`Distribution.kl`).
        is_replay: `[B]` bool.
    """
    _check_columns(divergences, divergences, is_replay)
    return (divergences * is_replay.to(divergences.dtype)).sum()  # [T, B] * [B]: whole columns, also rejected rows


def value_cloning_loss(values: Tensor, behaviour_values: Tensor, is_replay: Tensor) -> Tensor:
    """sum over t and replayed columns of (V(x_t) - V_behaviour(x_t))^2.

    Args:
        values: `[T, B]` of the current network, with gradient.
        behaviour_values: `[T, B]` of the network that acted, constants.
        is_replay: `[B]` bool.
    """
    _check_columns(values, behaviour_values, is_replay)
    squared = (values - behaviour_values.detach()).square()  # [T, B]
    return (squared * is_replay.to(squared.dtype)).sum()  # [T, B] * [B]


def _check_columns(current: Tensor, behaviour: Tensor, is_replay: Tensor) -> None:
    if current.shape != behaviour.shape or is_replay.shape != current.shape[1:2]:
        got = f"{list(current.shape)}, {list(behaviour.shape)} and {list(is_replay.shape)}"
        raise ValueError(f"cloning: wanted current and behaviour [T, B, ...] alike and is_replay [B], got {got}")
