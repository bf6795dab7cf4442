"""Spectral normalisation: a convolution's weights are divided by their largest singular value (arXiv:1802.05957, algorithm 1).

    v <- W^T u / |W^T u|,   u <- W v / |W v|,   sigma = u^T W v,   y = conv(x, W / sigma)

The gradient passes through sigma, with u and v as constants. These are buffers of the network. One power iteration follows each
optimiser step (`agents/engine/stepper.py`), and no pass moves them: learner threads, acting, target networks and resumed runs
all see the vectors that belong to their version of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_FIRST_ITERATIONS = 15
_EPSILON = 1e-12


class SpectralConv2d(nn.Conv2d):
    """A convolution with padding whose weights, as a matrix `[out, in * kernel * kernel]`, have a largest singular value of 1.

    left: u, float32 `[out]`. right: v, float32 `[in * kernel * kernel]`.
    """

    left: Tensor
    right: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=padding)
        rows, columns = self.weight.flatten(1).shape
        self.register_buffer("left", torch.full((rows,), rows**-0.5))
        self.register_buffer("right", torch.full((columns,), columns**-0.5))

    @property
    def guarded_tensors(self) -> list[Tensor]:
        """The vectors, which follow each optimiser step. A step that is refused on a GPU restores them."""
        return [self.left, self.right]

    @torch.no_grad()
    def start(self, generator: torch.Generator | None) -> None:
        """Find the vectors of new weights, from a random one."""
        if self.weight.is_meta:
            return  # shapes alone, on which PyTorch takes a second for these products
        self.left.normal_(generator=generator)
        for _ in range(_FIRST_ITERATIONS):
            self.iterate()

    @torch.no_grad()
    def iterate(self) -> None:
        """Take a step of power iteration."""
        matrix = self.weight.flatten(1)
        self.right.copy_(functional.normalize(matrix.t() @ self.left, dim=0, eps=_EPSILON))
        self.left.copy_(functional.normalize(matrix @ self.right, dim=0, eps=_EPSILON))

    def norm(self) -> Tensor:
        """sigma, float32 `[]`, with gradient."""
        # Products and sums, which autocast leaves in float32: a rounded norm would scale all weights.
        columns = (self.weight.flatten(1).float() * self.right.float()).sum(-1)  # W v [out]
        return (columns * self.left.float()).sum()

    def forward(self, inputs: Tensor) -> Tensor:
        """`[N, in, H, W]` in, `[N, out, H, W]` out."""
        weight = (self.weight / self.norm()).to(self.weight.dtype)
        return functional.conv2d(inputs, weight, self.bias, padding=self.padding)


def spectral_layers(network: nn.Module) -> list[SpectralConv2d]:
    """The network's layers whose vectors an optimiser step moves."""
    return [module for module in network.modules() if isinstance(module, SpectralConv2d)]
