"""Probability distributions over actions. Every action that this program draws is drawn here."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_categorical(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one action a row from softmax(logits `[N, A]`). Returns int64 `[N]`.

    The actions race: action a arrives at E_a / p_a with E_a exponential, and the first to arrive wins with probability p_a.
    `torch.multinomial` draws the same numbers, but it checks its input on the host and so makes the host wait for a GPU.

    Args:
        logits: float32 `[N, A]`.
        generator: on the device of the logits; None takes PyTorch's global one.
    """
    probabilities = logits.softmax(-1)
    arrivals = torch.empty_like(probabilities).exponential_(1.0, generator=generator)
    return (probabilities / arrivals).argmax(-1)
