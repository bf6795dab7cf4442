"""Windows of n steps at every row of whole trajectories, and the errors that the values of acting give."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from agents.returns.nstep import NStep, n_step
from agents.values.rescaling import rescaled, unscaled


def windows_of_rows(rewards: Tensor, terminated: Tensor, action_used: Tensor, steps: int, gamma: float) -> NStep:
    """The window that starts at each row, `[T, B]` each. Windows do not reach beyond row T-1, so the last ones are shorter.

    Args:
        rewards: `[T, B]`.
        terminated: bool `[T, B]`.
        action_used: bool `[T, B]`.
        steps: n.
        gamma: discount per step.
    """
    shape = rewards.shape
    # G, D and m of T * B windows, [T * B] each.
    found = n_step(_unfolded(rewards, steps), _unfolded(terminated, steps), _unfolded(action_used, steps), gamma)
    return NStep(*(part.view(shape) for part in found))


def _unfolded(rows: Tensor, steps: int) -> Tensor:
    """Rows t to t + steps - 1 for each t, `[steps, T * B]`; zeros beyond the last row. rows: `[T, B]`."""
    # Padded with zeros, which for `action_used` means unused: a window ends at row T-1.
    beyond = functional.pad(rows.unsqueeze(0), (0, 0, 0, steps - 1)).squeeze(0)  # [T + steps - 1, B]
    return beyond.unfold(0, steps, 1).flatten(0, 1).t()  # [T, B, steps] -> [steps, T * B]


def behind(values: Tensor, windows: NStep) -> Tensor:
    """The entries at the rows behind the windows, `[T, B]`. values: `[T+1, B]`."""
    rows = torch.arange(len(windows.rows), device=values.device).unsqueeze(-1) + windows.rows  # t + m, [T, B]
    return values.gather(0, rows)


def targets_of(windows: NStep, values: Tensor, *, rescaling: bool) -> Tensor:
    """y = G + D V(x'), or h(G + D h^-1(V(x'))) with rescaled values, `[T, B]`, without gradient.

    Args:
        windows: at each row, `[T, B]` each.
        values: V, `[T+1, B]`.
        rescaling: whether values are learned as h(V) (`agents.values.rescaling`).
    """
    # The recursion holds for real returns, so values are scaled back, discounted, and rescaled.
    plain = unscaled(values) if rescaling else values  # h^-1(V) [T+1, B]
    targets = windows.returns + windows.discounts * behind(plain, windows)  # G + D V(x_{t+m}), [T, B]
    return (rescaled(targets) if rescaling else targets).detach()


def initial_errors(
    rewards: Tensor,
    terminated: Tensor,
    action_used: Tensor,
    behaviour_q: Tensor,
    behaviour_q_max: Tensor,
    *,
    steps: int,
    gamma: float,
    rescaling: bool = False,
) -> Tensor:
    """|G + D max_a Q_b(x_{t+m}, a) - Q_b(x_t, a_t)| for each row t, `[T, B]`; 0 where no window starts.

    Q_b are the values of the network that acted (Ape-X, arXiv:1803.00933). The value of row T is not stored, so a window that
    needs it ends one row earlier. Row T-1 then has no window and its error is NaN.

    Args:
        rewards: `[T, B]`, as they are learned from.
        terminated: bool `[T, B]`.
        action_used: bool `[T, B]`.
        behaviour_q: `[T, B]`, of the actions taken.
        behaviour_q_max: `[T, B]`, of the best actions.
        steps: n.
        gamma: discount per step.
        rescaling: whether the values are rescaled ones (`agents.values.rescaling`).
    """
    whole = windows_of_rows(rewards, terminated, action_used, steps, gamma)
    length = len(rewards)
    # [T, B], windows that bootstrap from x_T
    needs_last = (whole.discounts > 0) & (torch.arange(length).unsqueeze(-1) + whole.rows == length)
    # An unused row ends the windows before it, so with row T-1 unused they bootstrap from x_{T-1} at the latest.
    shortened = action_used.clone()
    shortened[-1] = False
    short = windows_of_rows(rewards, terminated, shortened, steps, gamma)
    windows = NStep(*(torch.where(needs_last, fewer, all_) for fewer, all_ in zip(short, whole, strict=True)))
    values = torch.cat([behaviour_q_max, torch.zeros_like(behaviour_q_max[:1])])  # row T: read with D = 0 only
    errors = (targets_of(windows, values, rescaling=rescaling) - behaviour_q).abs()
    errors = torch.where(needs_last & (windows.rows == 0), torch.nan, errors)
    return torch.where(action_used, errors, 0.0)
