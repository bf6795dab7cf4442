"""Normalisation of advantages: a pure function, without gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.engine.collectives import Collectives

EPSILON = 1e-8  # OpenAI baselines; a batch of one step has advantage 0


@torch.no_grad()
def normalised(advantages: Tensor, mask: Tensor, collectives: Collectives | None = None) -> Tensor:
    """(A - mean) / (standard deviation + 1e-8) over the steps of the mask, 0 elsewhere, `[T, B]`.

    The standard deviation is that of the whole population, as in OpenAI baselines and RLlib.

    Args:
        advantages: `[T, B]`.
        mask: bool `[T, B]`, the steps that count. Without any the result is 0.
        collectives: operations over all learners, over whose steps mean and deviation are taken. None: over this learner's.
    """
    collectives = collectives or Collectives()
    if advantages.shape != mask.shape:
        raise ValueError(f"advantages: wanted {list(mask.shape)} as the mask, got {list(advantages.shape)}")
    count = mask.sum().clamp(min=1)  # []; 1 for an empty mask, so that the result is 0 and not NaN
    # In float64, because equal advantages would differ from their rounded mean, and the division would enlarge the difference.
    mean = collectives.mean(torch.where(mask, advantages, 0.0).sum(dtype=torch.float64) / count, mask)
    centred = torch.where(mask, advantages - mean, 0.0)  # [T, B]; outside the mask A - mean is not 0
    # Population deviation, divided by n and not by n - 1: a single step gets 0.
    return centred / (collectives.mean(centred.square().sum() / count, mask).sqrt() + EPSILON)
