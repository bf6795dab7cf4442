"""C51: a distribution over N fixed values (atoms) for each action (Bellemare et al. 2017, arXiv:1707.06887).

    z_i = v_min + i dz,  dz = (v_max - v_min) / (N - 1)        Q(x, a) = sum_i z_i p_i(x, a)
    m_i = sum_j clip(1 - |clip(G + D z_j, v_min, v_max) - z_i| / dz, 0, 1) p'_j(x', a')               (equation 7)
    loss = - sum_i m_i log p_i(x_t, a_t)

The projection is the dense N x N product. Forms with floor and ceil lose the mass of an atom that is hit exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor


def support(v_min: float, v_max: float, atoms: int, device: torch.device | None = None) -> Tensor:
    """The values z of the atoms, float32 `[atoms]`."""
    # Each atom is rounded once, from float64.
    return torch.linspace(v_min, v_max, atoms, dtype=torch.float64).float().to(device)


def expectation(logits: Tensor, atoms: Tensor) -> Tensor:
    """Q-values `[...]` of distributions with these logits `[..., N]`. atoms: `[N]`."""
    return torch.softmax(logits, -1) @ atoms  # sum_i z_i p_i


def project(returns: Tensor, discounts: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of G + D z, moved onto the atoms: m `[B, N]`, without gradient.

    Args:
        returns: G, `[B]`.
        discounts: D, `[B]`; 0 moves all mass to the atoms nearest to G.
        probabilities: p' `[B, N]` of the next action by the target network.
        atoms: z, `[N]`, evenly spaced.
    """
    low, high = atoms[0], atoms[-1]  # v_min, v_max
    width = (high - low) / (len(atoms) - 1)  # dz
    # Each atom's value is discounted and shifted; beyond the support it counts as the nearest end.
    moved = (returns.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms).clamp(low, high)  # [B, N of p']
    # Between two atoms its mass goes to both, more to the nearer one.
    shares = (1 - (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / width).clamp(0, 1)  # [B, N of m, N of p']
    return (shares @ probabilities.unsqueeze(-1)).squeeze(-1).detach()  # m_i = sum_j shares_ij p'_j, [B, N]


def cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    """- sum_i m_i log p_i, `[B]`. targets: m `[B, N]`. logits: `[B, N]` of the actions taken, with gradient."""
    return -(targets * torch.log_softmax(logits, -1)).sum(-1)  # finite where softmax is 0 by underflow


def divergence(targets: Tensor, cross_entropies: Tensor) -> Tensor:
    """KL(m || p) `[B]`, the priority of Rainbow (Hessel et al. 2018, arXiv:1710.02298). targets: m `[B, N]`.

    Rounding can make the difference of the two entropies slightly negative, so it is cut at 0.
    """
    return (cross_entropies + torch.xlogy(targets, targets).sum(-1)).clamp(min=0.0)  # + sum m log m, 0 log 0 = 0
