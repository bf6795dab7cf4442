"""Critics: several Q-functions of one shape, computed together as layers with stacked weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.networks.torsos import ACTIVATIONS


class StackedLinear(nn.Module):
    """`count` linear layers side by side, in one batched product: inputs `[count, N, inputs]` to `[count, N, outputs]`."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # PyTorch's usual start, with which SAC and TD3 were published
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1:
            # A CPU takes four times as long for a batched product with a single column as for this sum.
            return (inputs * self.weight.transpose(1, 2)).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedLayerNorm(nn.Module):
    """Layer normalisation of each layer's outputs, with a scale and an offset of its own: `[count, N, features]`."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count, 1, features))
        self.offset = nn.Parameter(torch.zeros(count, 1, features))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self.offset, functional.layer_norm(inputs, inputs.shape[-1:]), self.scale)


class Critics(nn.Module):
    """`count` Q-functions of an observation and an action, or of all values of a choice.

    Hidden layers are linear layer, dropout, layer normalisation, activation (DroQ, arXiv:2110.02034, figure 1).

    Args:
        count: Q-functions.
        inputs: numbers that describe an observation, and an action if that is real numbers.
        outputs: values of each function: 1, or one for each action.
        sizes: units of the hidden layers.
        activation: key of `ACTIVATIONS`.
        layer_norm: whether hidden layers are normalised.
        dropout: probability with which a hidden unit is left out.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        outputs: int,
        sizes: Sequence[int],
        activation: str,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count = count
        layers: list[nn.Module] = []
        for before, size in zip((inputs, *sizes), sizes, strict=False):
            layers.append(StackedLinear(count, before, size))
            layers += [nn.Dropout(dropout)] if dropout else []
            layers += [StackedLayerNorm(count, size)] if layer_norm else []
            layers.append(ACTIVATIONS[activation]())
        self.layers = nn.Sequential(*layers, StackedLinear(count, sizes[-1], outputs))

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Values of described observations `[N, F]` and actions `[N, D]`, `[count, N]`; or of all actions, `[count, N, A]`."""
        inputs = observations if actions is None else torch.cat([observations, actions], -1)
        # All critics read the same rows, so `expand` copies nothing.
        values: Tensor = self.layers(inputs.expand(self.count, *inputs.shape))
        return values if actions is None else values.squeeze(-1)
