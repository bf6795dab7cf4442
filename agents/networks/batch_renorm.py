"""Batch renormalisation (Ioffe 2017, arXiv:1702.03275), as CrossQ uses it (Bhatt et al., arXiv:1902.05605).

    r = clip(sigma_B / sigma_run, 1/3, 3),   d = clip((mu_B - mu_run) / sigma_run, -5, 5),   both constants
    y = scale (x - m) / sqrt(v + eps) + offset,   m = mu_B - d sigma_B / r,   v = sigma_B^2 / r^2

Acting, evaluation and the targets' actions go by the running statistics. A batch that is learned from goes by its own, which
r and d correct, so that its outputs are those of acting as far as the clips allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from agents.engine.collectives import Collectives

EPSILON, MOMENTUM = 1e-3, 0.99
LARGEST_RATIO, LARGEST_SHIFT = 3.0, 5.0
WARM_UP = 100_000
"""Steps of plain batch normalisation (r = 1, d = 0), in which the running statistics become those of the replay."""


class BatchRenorm(nn.Module):
    """Normalises features `[..., N, features]` over N rows, for each network `[...]` by itself.

    Its buffers are float32, so that they are published, exported and saved with the weights.

    Args:
        features: of a row.
        count: networks side by side, as sizes; none for a single one.
        warm_up: steps of plain batch normalisation.
    """

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, features: int, count: tuple[int, ...] = (), warm_up: int = WARM_UP) -> None:
        super().__init__()
        shape = (*count, 1, features)
        self.scale = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("steps", torch.zeros(()))
        self.warm_up = warm_up
        self.collectives: Collectives | None = None  # while rows are normalised by their own statistics
        self.seen: Sequence[Tensor] = ()  # mean and variance of the batch, until `follow`

    def forward(self, inputs: Tensor) -> Tensor:
        rows, factor, shift = self.parts(inputs)
        return torch.addcmul(shift, rows, factor)  # scale (x - m) / sqrt(v + eps) + offset

    def parts(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, factor and shift: factor * rows + shift are the outputs. A linear layer can take factor and shift into itself.

        The rows `[..., N, features]` are centred. Factor and shift are `[..., 1, features]`.
        """
        inputs = _exact(inputs, inputs)  # statistics of bfloat16 would be those of rounding
        if self.collectives is None:
            return inputs - self.mean, self.scale * (self.variance + EPSILON).rsqrt(), self.offset
        centred, mean, variance = _Centred.apply(inputs, self.collectives)  # type: ignore[no-untyped-call]
        self.seen = mean, variance.detach()
        ratio, shift = self.corrections(*self.seen)
        factor = self.scale * (variance / ratio.square() + EPSILON).rsqrt()  # scale / sqrt(v + eps)
        # A unit that is 0 in all rows has sigma_B = 0, where the root has no slope.
        moves = variance > 0
        deviation = torch.where(moves, torch.where(moves, variance, 1.0).sqrt(), 0.0)  # sigma_B
        return centred, factor, self.offset + shift * deviation / ratio * factor  # mu_B - m = d sigma_B / r

    def corrections(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """r and d for the statistics of a batch, which are constants."""
        deviation, running = (variance + EPSILON).sqrt(), (self.variance + EPSILON).sqrt()
        warm = self.steps >= self.warm_up  # [], on the device: the host reads no flag
        ratio = torch.where(warm, (deviation / running).clamp(1 / LARGEST_RATIO, LARGEST_RATIO), 1.0)
        return ratio, torch.where(warm, ((mean - self.mean) / running).clamp(-LARGEST_SHIFT, LARGEST_SHIFT), 0.0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the module. A torso in bfloat16 keeps this part in float32, since a mean may be many deviations from zero."""
        moved: Self = super()._apply(lambda tensor: _exact(fn(tensor), tensor), recurse)  # type: ignore[no-untyped-call]
        return moved

    @torch.no_grad()
    def follow(self, applied: Tensor) -> None:
        """Move the running statistics towards those of the batch; nothing if `applied`, bool `[]` on the device, is false."""
        for running, seen in zip((self.mean, self.variance), self.seen, strict=False):
            # `where`, since a refused batch may be NaN.
            running.copy_(torch.where(applied, running.lerp(seen, 1 - MOMENTUM), running))
        if self.seen:
            self.steps.add_(applied).clamp_(max=self.warm_up)  # float32 counts no further than 2^24
        self.seen = ()


def add_renorms(layers: nn.Sequential, warm_up: int) -> None:
    """Insert batch renormalisation before the first linear layer, and behind the activation of each."""
    linear = [(index, layer) for index, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    ends = [*(index for index, _ in linear[1:]), len(layers)]
    for end, (_, layer) in reversed(list(zip(ends, linear, strict=True))):  # from the last, so that other indices stay right
        layers.insert(end, BatchRenorm(layer.out_features, warm_up=warm_up))
    layers.insert(linear[0][0], BatchRenorm(linear[0][1].in_features, warm_up=warm_up))


def renorms_of(module: nn.Module) -> list[BatchRenorm]:
    """The batch renormalisations in a module."""
    return [each for each in module.modules() if isinstance(each, BatchRenorm)]


@contextmanager
def statistics_of_batch(module: nn.Module, collectives: Collectives) -> Iterator[None]:
    """Normalise by the statistics of the rows that pass, of all learners together. Otherwise the running ones normalise."""
    for each in (found := renorms_of(module)):
        each.collectives = collectives
    try:
        yield
    finally:
        for each in found:
            each.collectives = None


def _exact(moved: Tensor, tensor: Tensor) -> Tensor:
    """`moved`, or `tensor` in float32 on its device if `moved` has a lower precision."""
    return moved if moved.dtype.itemsize >= torch.float32.itemsize else tensor.to(moved.device, torch.float32)


class _Centred(torch.autograd.Function):
    """Rows `[..., N, features]` less their mean, the mean and the variance, of the rows of all learners together.

    Autograd's own gradient takes more passes over the rows.
    """

    @staticmethod
    def forward(context: Any, inputs: Tensor, collectives: Collectives) -> tuple[Tensor, Tensor, Tensor]:
        mean = collectives.mean(inputs.mean(-2, keepdim=True), None)  # mu_B [..., 1, features]
        centred = inputs - mean
        # Population variance: N, not N - 1. Squares of the centred rows, since a mean may be many deviations from zero.
        squares = centred.square().sum(-2, keepdim=True)  # a norm over rows took six times as long
        variance = collectives.mean(squares / inputs.shape[-2], None)  # sigma_B^2
        context.save_for_backward(centred)
        context.collectives = collectives
        context.mark_non_differentiable(mean)  # the gradient through it is a part of that of the centred rows
        return centred, mean, variance

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (centred,) = context.saved_tensors
        gradient, _, of_variance = gradients
        # The loss of each learner depends on the statistics of all. The sums are averaged here as gradients are later.
        plain, of_variance = context.collectives.mean(torch.stack([gradient.sum(-2, keepdim=True), of_variance]), None)
        # g - sum g / N + 2 (x - mu_B) dL/dsigma_B^2 / N: the second is the gradient through mu_B.
        rows = centred.shape[-2]
        return torch.addcmul(gradient - plain / rows, centred, 2 / rows * of_variance), None
