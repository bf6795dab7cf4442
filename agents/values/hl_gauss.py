"""HL-Gauss: a scalar is learned by classification into bins (Farebrother et al. 2024, arXiv:2403.03950, section 3.1).

    p_i(y) = (Phi((e_{i+1} - y) / sigma) - Phi((e_i - y) / sigma)) / (Phi((e_N - y) / sigma) - Phi((e_0 - y) / sigma))
    loss = - sum_i p_i log softmax(logits)_i        Q = sum_i c_i softmax(logits)_i

e_0 to e_N are the edges of N bins over [v_min, v_max], c_i their centres and sigma 0.75 widths of a bin. y is the scalar target
of DQN, so no distribution is bootstrapped. `agents.values.categorical` has cross-entropy and expectation. Near an end of the
range the mean of p is not y: a range should reach 3 sigma beyond the values that occur.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIGMA = 0.75
"""Standard deviation of the normal distribution around a target, in widths of a bin."""


def bin_edges(v_min: float, v_max: float, bins: int) -> Tensor:
    """e, float32 `[bins + 1]`."""
    # Each edge is rounded once, from float64.
    return torch.linspace(v_min, v_max, bins + 1, dtype=torch.float64).float()


def bin_centres(edges: Tensor) -> Tensor:
    """c `[N]`, the values of the bins. edges: `[N + 1]`."""
    return (edges[1:] + edges[:-1]) / 2


def bin_probabilities(targets: Tensor, edges: Tensor, sigma: float = SIGMA) -> Tensor:
    """p `[..., N]`, without gradient.

    Args:
        targets: y `[...]`; beyond the edges they count as the nearest one.
        edges: e `[N + 1]`, evenly spaced.
        sigma: standard deviation in widths of a bin.
    """
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    # Far beyond an edge numerator and denominator would both be 0.
    inside = targets.detach().clamp(edges[0], edges[-1])
    below = torch.special.ndtr((edges - inside.unsqueeze(-1)) / (sigma * width))  # Phi at each edge, [..., N + 1]
    probabilities: Tensor = (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])
    return probabilities
