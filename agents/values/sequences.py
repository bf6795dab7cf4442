"""Loss and priority of whole sequences (R2D2, Kapturowski et al., ICLR 2019, section 2.3)."""

from __future__ import annotations

import torch
from torch import Tensor

ETA = 0.9


def sequence_losses(errors: Tensor, learned: Tensor) -> Tensor:
    """0.5 sum_t delta_t^2 over the learned rows of each sequence, `[B]`.

    Args:
        errors: delta `[T, B]`, with gradient.
        learned: bool `[T, B]`, rows that a window starts in and that do not belong to the burn-in.
    """
    return 0.5 * torch.where(learned, errors, 0.0).square().sum(0)  # [T, B] -> [B]


def sequence_priorities(errors: Tensor, learned: Tensor, eta: float = ETA) -> Tensor:
    """eta max_t |delta_t| + (1 - eta) mean_t |delta_t| over the learned rows, `[B]`; 0 for a sequence without any.

    Args:
        errors: delta `[T, B]`.
        learned: bool `[T, B]`.
        eta: weight of the largest error.
    """
    sizes = torch.where(learned, errors.detach().abs(), 0.0)  # [T, B]
    # A mean alone would hide the one large error of a long sequence; the largest alone forgets all others.
    return eta * sizes.amax(0) + (1 - eta) * sizes.sum(0) / learned.sum(0).clamp(min=1)
