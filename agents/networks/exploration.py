"""Exploration beside the distribution of the actions: epsilon, and a state that each environment keeps.

`FeatureNetwork.exploration` gives one row of numbers for each environment of a run, float32 `[N, E]`. They are constants, such
as the epsilon of Ape-X's ladder. The last `FeatureNetwork.noise_size` of them are a state instead, such as noise that is
correlated in time. A number that changes over the run, such as the epsilon of a schedule, is a float32 buffer of the acting
network. The agent sets it, so it travels with weights, versions and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agents.networks.cores import zeroed

SCHEDULE, LADDER = "schedule", "ladder"
"""Values of the setting `exploration`: one epsilon that falls over the run, or one for each environment."""
LADDER_BASE, LADDER_EXPONENT = 0.4, 7.0
"""Constants of Ape-X's ladder."""
LONGEST_REPEAT = 10_000
"""Most steps for which a random action is repeated."""


def epsilon_ladder(environments: Tensor, total: int) -> Tensor:
    """The epsilon of each environment, 0.4^(1 + 7 i / (total - 1)), float32 `[N]`; 0.4 if there is only one environment.

    Source: Ape-X (Horgan et al. 2018, arXiv:1803.00933), section 4.1.

    Args:
        environments: int64 `[N]`, numbers i of the environments, from 0 to total - 1.
        total: environments of the run.
    """
    exponents = 1 + LADDER_EXPONENT * environments.double() / max(1, total - 1)  # [N], from 1 to 8
    return (LADDER_BASE**exponents).float()


def legal_choices(legal: Tensor, counts: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """One legal value of each component, uniformly drawn and independent of the others, int64 `[N, len(counts)]`.

    Args:
        legal: bool `[N, sum(counts)]`; at least one value of each component is legal.
        counts: values of each component.
        generator: on the device of `legal`.
    """
    # The largest of independent uniform numbers is at each legal place with the same probability.
    scores = torch.rand(legal.shape, generator=generator, device=legal.device).masked_fill_(~legal, -1.0)
    return torch.stack([part.argmax(-1) for part in scores.split(list(counts), -1)], -1)


def with_probability(epsilon: Tensor, explored: Tensor, best: Tensor, generator: torch.Generator | None) -> Tensor:
    """`explored` with probability epsilon, otherwise `best`, as a whole for each environment.

    Args:
        epsilon: float32 `[N]` or `[]`.
        explored: actions `[N, ...]`.
        best: actions `[N, ...]`.
        generator: on the device of the actions.
    """
    explores = torch.rand(len(best), generator=generator, device=best.device) < epsilon  # bool [N]
    return torch.where(explores.view(-1, *(1 for _ in best.shape[1:])), explored, best)


def zeta_cumulative(exponent: float) -> Tensor:
    """P(n <= k) of P(n) ~ n^-exponent over n = 1 to `LONGEST_REPEAT`, float64 `[LONGEST_REPEAT]` for k = 1, 2, ..."""
    weights = torch.arange(1, LONGEST_REPEAT + 1, dtype=torch.float64) ** -exponent
    return weights.cumsum(0) / weights.sum()


def repeated(
    state: Tensor,
    legal: Tensor,
    epsilon: Tensor,
    explored: Tensor,
    best: Tensor,
    cumulative: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Epsilon-greedy choices whose random ones last n steps, with n drawn from `cumulative`.

    Where no repeat is under way, `explored` begins one with probability epsilon, and otherwise `best` is taken. An exponent
    that goes to infinity gives n = 1, the usual epsilon-greedy. Source: Dabney et al. 2021, arXiv:2006.01782, algorithm 1.

    Args:
        state: float32 `[N, 1 + D]`, the steps for which a choice is still repeated, and that choice.
        legal: bool `[N]`, whether it is legal now. A repeat ends where it is not.
        epsilon: float32 `[N]` or `[]`.
        explored: int64 `[N, D]`.
        best: int64 `[N, D]`.
        cumulative: of `zeta_cumulative`.
        generator: on the device of the actions.

    Returns the choices, int64 `[N, D]`, and the next state, float32 `[N, 1 + D]`.
    """
    left, kept = state[:, 0], state[:, 1:].long()
    drawn = torch.rand(2, len(state), dtype=torch.float64, generator=generator, device=state.device)
    goes_on = (left > 0) & legal
    begins = ~goes_on & (drawn[0] < epsilon)
    length = 1 + torch.searchsorted(cumulative, drawn[1], right=True).clamp(max=LONGEST_REPEAT - 1)  # n, int64 [N]
    left = torch.where(goes_on, left - 1, torch.where(begins, length - 1, 0))
    taken = torch.where(goes_on.unsqueeze(-1), kept, torch.where(begins.unsqueeze(-1), explored, best))  # [N, D]
    return taken, torch.cat([left.unsqueeze(-1), taken], -1).float()


def begun(exploration: Tensor, first: Tensor, noise_size: int) -> Tensor:
    """Exploration `[N, E]` whose state, the last `noise_size` columns, is zero where an episode begins. first: bool `[N]`."""
    if not noise_size:
        return exploration
    constants, state = exploration[:, :-noise_size], exploration[:, -noise_size:]
    return torch.cat([constants, zeroed(state, first)], -1)  # [N, E]
