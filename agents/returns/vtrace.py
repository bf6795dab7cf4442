"""V-trace targets and policy-gradient advantages: pure functions of tensors, without gradient.

IMPALA (Espeholt et al. 2018, arXiv:1802.01561), equation 1 and remarks 1 and 2; the mask of rejected steps is LASER's
(Schmitt et al. 2019, arXiv:1909.11583). The behaviour policy mu chose the actions, the target policy pi is being
learned. With R_t = pi(a_t|x_t) / mu(a_t|x_t):

    rho_t = min(rho_bar, R_t),  c_t = lambda min(c_bar, R_t),  prho_t = min(pg_rho_bar, R_t)
    delta_t = rho_t (r_t + d_t V'_t - V(x_t))
    e_t = m_t (delta_t + d_t k_t c_t e_{t+1}),  e_T = 0,  v_t = V(x_t) + e_t
    A_t = m_t prho_t (r_t + d_t (v_{t+1} if k_t else V'_t) - V(x_t)),  v_T = V'_{T-1}

V'_t is the value of the observation that follows step t, m_t = 0 where a step may not be used, and k_t = 0 where step t
ended its episode and row t + 1 belongs to another one. Departures from equation 1: m_t, k_t and V'_t, without effect by
default. With lambda < 1 the advantage keeps v_{t+1}, as in the paper, and does not mix in V(x_{t+1}).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """Targets of one batch of trajectories; neither carries a gradient.

    vs: `[T, B]` value targets v_t; equal to V(x_t) where a step is masked.
    pg_advantages: `[T, B]` advantages A_t, already weighted by the clipped ratio; zero where a step is masked.
    """

    vs: Tensor
    pg_advantages: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    rho_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
    pg_rho_bar: float | None = 1.0,
    lambda_: float = 1.0,
    mask: Tensor | None = None,
    next_values: Tensor | None = None,
    trace_continues: Tensor | None = None,
) -> VTraceReturns:
    """Value targets and advantages of T steps of B trajectories; T and B are read from the tensors.

    With next-step autoreset a truncated step t needs nothing but the mask: row t + 1 holds the episode's own final
    observation, so its value is V'_t already, and m_{t+1} = 0 keeps the next episode out.

    Args:
        log_rhos: `[T, B]` log pi(a_t|x_t) - log mu(a_t|x_t).
        discounts: `[T, B]` gamma, 0 where step t terminated its episode.
        rewards: `[T, B]` already clipped, if they are to be.
        values: `[T, B]` V(x_t) of the current network, t < T.
        bootstrap_value: `[B]` V(x_T).
        rho_bar: clips the ratio in delta_t, and so decides which policy is evaluated; None leaves it unclipped.
        c_bar: clips the ratio in the trace, and so decides speed and variance; None leaves it unclipped.
        pg_rho_bar: clips the ratio in the advantage; None leaves it unclipped.
        lambda_: factor on every trace coefficient, 0 to 1.
        mask: `[T, B]` bool, or float of 0 and 1: m_t, 1 where the step may be used. All by default.
        next_values: `[T, B]` V'_t where it is not the next row's value; its last row replaces `bootstrap_value`.
        trace_continues: `[T, B]` bool, or float of 0 and 1: k_t. All 1 by default; `next_values` needs it.
    """
    _check_settings(rho_bar, c_bar, pg_rho_bar, lambda_)
    _check_shapes(log_rhos, bootstrap_value, discounts=discounts, rewards=rewards, values=values, mask=mask)
    _check_shapes(log_rhos, bootstrap_value, next_values=next_values, trace_continues=trace_continues)
    if next_values is None:
        next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])  # V'_t = V(x_{t+1}) [T, B]
    elif trace_continues is None:
        raise ValueError("next_values needs trace_continues, or the next episode flows into the one before; got None")
    errors = clipped_rhos(log_rhos, rho_bar) * (rewards + discounts * next_values - values)  # delta_t [T, B]
    decays = discounts * (lambda_ * clipped_rhos(log_rhos, c_bar))  # d_t c_t [T, B]
    if trace_continues is not None:
        decays = torch.where(trace_continues.bool(), decays, 0.0)  # k_t ends the trace, while V'_t still bootstraps
    if mask is not None:
        errors, decays = (torch.where(mask.bool(), each, 0.0) for each in (errors, decays))  # m_t
    vs = values + accumulate_backwards(errors, decays)  # v_t = V(x_t) + e_t, [T, B]
    next_vs = torch.cat([vs[1:], next_values[-1:]])  # v_{t+1}; behind the last row only the value is known
    if trace_continues is not None:
        next_vs = torch.where(trace_continues.bool(), next_vs, next_values)  # v_{t+1} belongs to another episode if k_t = 0
    pg_advantages = clipped_rhos(log_rhos, pg_rho_bar) * (rewards + discounts * next_vs - values)  # IMPALA, E.3
    if mask is not None:
        pg_advantages = torch.where(mask.bool(), pg_advantages, 0.0)
    return VTraceReturns(vs=vs, pg_advantages=pg_advantages)


def clipped_rhos(log_rhos: Tensor, bar: float | None) -> Tensor:
    """min(bar, exp(log_rhos)) of any shape, clipped before exp so that nothing overflows; None leaves it unclipped."""
    return torch.exp(log_rhos if bar is None else log_rhos.clamp(max=math.log(bar)))


def _check_settings(rho_bar: float | None, c_bar: float | None, pg_rho_bar: float | None, lambda_: float) -> None:
    for name, bar in (("rho_bar", rho_bar), ("c_bar", c_bar), ("pg_rho_bar", pg_rho_bar)):
        if bar is not None and not bar > 0.0:
            raise ValueError(f"{name}: wanted a number above 0, or None for no clipping; got {bar}")
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_: wanted 0 to 1, got {lambda_}")
    if (math.inf if rho_bar is None else rho_bar) < (math.inf if c_bar is None else c_bar):
        raise ValueError(f"wanted rho_bar >= c_bar, which V-trace's convergence needs; got {rho_bar} and {c_bar}")


def _check_shapes(log_rhos: Tensor, bootstrap_value: Tensor, **others: Tensor | None) -> None:
    if log_rhos.dim() != 2 or log_rhos.shape[0] < 1:
        raise ValueError(f"log_rhos: wanted [T, B] with T >= 1, got {list(log_rhos.shape)}")
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != log_rhos.shape:
            raise ValueError(f"{name}: wanted {list(log_rhos.shape)} as log_rhos, got {list(tensor.shape)}")
    if bootstrap_value.shape != log_rhos.shape[1:]:
        raise ValueError(f"bootstrap_value: wanted {list(log_rhos.shape[1:])}, got {list(bootstrap_value.shape)}")


def accumulate_backwards(errors: Tensor, decays: Tensor) -> Tensor:
    """`[T, B]` e_t = errors_t + decays_t e_{t+1} with e_T = 0, row by row from the end: one fused operation a row."""
    rows = list(errors.unbind(0))  # T rows [B]; the last one is e_{T-1} already, because e_T = 0
    decay_rows = decays.unbind(0)
    for t in range(len(rows) - 2, -1, -1):  # row T-1 has nothing behind it
        rows[t] = torch.addcmul(rows[t], decay_rows[t], rows[t + 1])  # e_t = delta_t + d_t c_t e_{t+1}, [B]
    return torch.stack(rows)
