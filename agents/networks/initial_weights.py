"""How the weights of convolutions and linear layers begin.

Cores, noisy layers and the critics of SAC, TD3 and DDPG draw their own weights, whatever the setting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

Layer: TypeAlias = nn.Conv2d | nn.Linear


def draw_orthogonal(layer: Layer, gain: float, generator: torch.Generator | None) -> None:
    """Orthogonal weights (Saxe et al. 2014, arXiv:1312.6120) times the gain, and biases of zero."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def draw_uniform(layer: Layer, gain: float, generator: torch.Generator | None) -> None:
    """Weights and biases uniform in [-1, 1] / sqrt(inputs), as PyTorch draws them, whatever the gain."""
    bound = layer.weight[0].numel() ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


INITIAL_WEIGHTS: dict[str, Callable[[Layer, float, torch.Generator | None], None]] = {
    "orthogonal": draw_orthogonal,
    "uniform": draw_uniform,
}
"""Name on the command line (`--initial_weights`) -> function that draws a layer's weights from the generator (None: PyTorch's).

Uniform weights were seen to leave V-trace's value equal for all states after millions of steps. With orthogonal ones DQN was
seen not to learn MinAtar's Asterix, which it learns with uniform ones. One reason may be that orthogonal weights are larger, so
that an update changes the features less, relative to their size.
"""
