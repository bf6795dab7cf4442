"""Noisy layers: exploration by random weights whose size is learned (Fortunato et al. 2018, arXiv:1706.10295).

    y = (mu_w + sigma_w * eps_w) x + mu_b + sigma_b * eps_b        eps_w = f(eps_out) f(eps_in)^T,  eps_b = f(eps_out)
    f(x) = sign(x) sqrt|x|

Noise is drawn for a whole batch (`draw_noise`) and stays until the next draw. Before the first draw there is none, and then y
uses mu alone, as evaluations do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

SIGMA = 0.5
"""Initial sigma times the square root of the inputs, for weights and biases."""


class NoisyLinear(nn.Module):
    """A linear layer whose weights and biases have factorised Gaussian noise.

    noise_in: f(eps_in), float32 `[inputs]`. noise_out: f(eps_out), float32 `[outputs]`. They are no part of the layer's state.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.weight_sigma = nn.Parameter(torch.empty(outputs, inputs))
        self.bias_sigma = nn.Parameter(torch.empty(outputs))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw mu uniformly within 1 / sqrt(inputs), and set every sigma to 0.5 / sqrt(inputs) (section 3.2)."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for mean in (self.weight, self.bias):
            mean.uniform_(-bound, bound, generator=generator)
        for sigma in (self.weight_sigma, self.bias_sigma):
            sigma.fill_(SIGMA * bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs `[N, inputs]` to outputs `[N, outputs]`."""
        # The outer product of two short vectors takes inputs + outputs random numbers instead of inputs * outputs.
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)  # [outputs, inputs]
        return functional.linear(inputs, weight, self.bias + self.bias_sigma * self.noise_out)  # eps_b = f(eps_out)


@torch.no_grad()
def draw_noise(layers: Iterable[NoisyLinear], generator: torch.Generator | None = None) -> None:
    """Draw new noise for each layer. generator: None for PyTorch's own on the layer's device, which every checkpoint saves."""
    for layer in layers:
        for noise in (layer.noise_in, layer.noise_out):
            device = generator.device if generator else noise.device
            drawn = torch.randn(noise.shape, generator=generator, device=device)
            noise.copy_(drawn.sign() * drawn.abs().sqrt(), non_blocking=True)  # f(x) = sign(x) sqrt|x|
