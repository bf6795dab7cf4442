"""Returns with traces for action values: Peng's Q(lambda) and Retrace(lambda), as pure functions without gradient.

Retrace (Munos et al. 2016, arXiv:1606.02647, equation 4) as a recursion:

    y_t = r_t + d_t (E_pi Q'(x_{t+1}) + c_{t+1} (y_{t+1} - Q'(x_{t+1}, a_{t+1})))
    c_t = lambda min(1, pi(a_t|x_t) / mu(a_t|x_t))

Its fixed point is the value of pi for any mu and lambda. c of the NEXT action weighs the trace, since Q(x_t, a_t) is given a_t.

Peng's Q(lambda) (Peng and Williams 1994; PQN, arXiv:2407.04811) has no ratio and corrects by V = max_a Q in place of
Q'(x_{t+1}, a_{t+1}), so that R_t = r_t + d_t ((1 - lambda) V_{t+1} + lambda R_{t+1}).

The trace ends where row t+1 is not used, and at row T-1. Row t+1 of a truncated step is an autoreset row and holds the
episode's own final observation, so the step bootstraps from its value and nothing of the next episode follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.returns.vtrace import accumulate_backwards, clipped_rhos


@torch.no_grad()
def retrace(*, rewards: Tensor, discounts: Tensor, values: Tensor, taken: Tensor, traces: Tensor, mask: Tensor) -> Tensor:
    """Targets y `[T, B]`, 0 where a step is masked. Raises ValueError for shapes that differ.

    Args:
        rewards: `[T, B]`, as they are learned from. A masked step's may be anything.
        discounts: `[T, B]` d_t: gamma, 0 where step t terminated its episode.
        values: `[T+1, B]` E_pi Q'(x_t) of the policy that is evaluated, with its entropy bonus if it has one.
        taken: `[T, B]` Q'(x_t, a_t).
        traces: `[T, B]` c_t, see `trace_coefficients`. That of row 0 is not used.
        mask: bool `[T, B]`, true where the step's action was used.
    """
    if rewards.dim() != 2 or len(rewards) < 1:
        raise ValueError(f"rewards: wanted [T, B] with T >= 1, got {list(rewards.shape)}")
    for name, tensor in (("discounts", discounts), ("taken", taken), ("traces", traces), ("mask", mask)):
        if tensor.shape != rewards.shape:
            raise ValueError(f"{name}: wanted {list(rewards.shape)} as rewards, got {list(tensor.shape)}")
    if values.shape != (len(rewards) + 1, *rewards.shape[1:]):
        raise ValueError(f"values: wanted {[len(rewards) + 1, *rewards.shape[1:]]}, got {list(values.shape)}")
    # y_t - Q'(x_t, a_t) = delta_t + d_t c_{t+1} (y_{t+1} - Q'(x_{t+1}, a_{t+1})). A masked row has the error 0, so that it ends
    # the trace of the row before it. `where` and not a product: its numbers may be anything, also not a number.
    errors = torch.where(mask, rewards + discounts * values[1:] - taken, 0.0)  # delta_t [T, B]
    decays = torch.where(mask, discounts, 0.0)
    decays[:-1] *= torch.where(mask[1:], traces[1:], 0.0)  # d_t c_{t+1} [T, B]; behind row T-1 nothing follows
    return torch.where(mask, taken + accumulate_backwards(errors, decays), 0.0)


@torch.no_grad()
def peng_q_lambda(*, rewards: Tensor, discounts: Tensor, values: Tensor, lambda_: float, mask: Tensor) -> Tensor:
    """Peng's Q(lambda): targets R `[T, B]`, 0 where a step is masked. Arguments and errors as for `retrace`.

    Args:
        values: `[T+1, B]` V(x_t) = max_a Q(x_t, a).
        lambda_: decay of the trace, 0 to 1.
    """
    traces = torch.full_like(rewards, lambda_)
    return retrace(rewards=rewards, discounts=discounts, values=values, taken=values[:-1], traces=traces, mask=mask)


def trace_coefficients(log_pi: Tensor, log_mu: Tensor, lambda_: float) -> Tensor:
    """c_t = lambda min(1, pi(a_t|x_t) / mu(a_t|x_t)) of the actions taken, of the shape of both log-probabilities.

    log_pi: minus infinity for an action that pi never takes.
    """
    return lambda_ * clipped_rhos(log_pi - log_mu, 1.0)
