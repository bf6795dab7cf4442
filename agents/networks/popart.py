"""PopArt: a value head whose outputs stay of size 1, whatever the size of rewards (van Hasselt et al. 2016, arXiv:1602.07714).

The head's outputs n are normalised, and V = sigma n + mu of each task. With k used targets G of an update (Hessel et al. 2018,
arXiv:1809.04474, section 3; there with one step for each target):

    rate = 1 - (1 - beta)^k,  mu <- (1 - rate) mu + rate mean G,  nu <- (1 - rate) nu + rate mean G^2
    sigma = sqrt(clip(nu - mu^2, 1e-8, 1e12))
    w <- w sigma_old / sigma,  b <- (sigma_old b + mu_old - mu) / sigma

So V stays as it was. The value loss is that of (G - mu) / sigma, and advantages are divided by sigma. The optimiser's moments
stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.engine.collectives import Collectives
from agents.losses import RawValues, ValuesInLosses

VARIANCES = (1e-8, 1e12)
"""Bounds of the variance of the targets."""


class TargetMoments(NamedTuple):
    """Running moments of the value targets of each task, float64 `[tasks]`. mean: mu. square: nu, the mean of the squares."""

    mean: Tensor
    square: Tensor

    @property
    def scale(self) -> Tensor:
        """sigma, `[tasks]`."""
        return (self.square - self.mean.square()).clamp(*VARIANCES).sqrt()


@torch.no_grad()
def with_targets(
    moments: TargetMoments,
    targets: Tensor,
    used: Tensor,
    beta: float,
    tasks: Tensor | None = None,
    collectives: Collectives | None = None,
) -> TargetMoments:
    """The moments after an update. A task without a used target keeps its own.

    Args:
        moments: those before.
        targets: G `[T, B]` in units of the rewards.
        used: bool `[T, B]`, the steps that count.
        beta: the part that one target has of the moments.
        tasks: int64 `[B]`, the task of each column; None if there is one.
        collectives: operations over all learners, whose targets are added first. None: of this one alone.
    """
    collectives = collectives or Collectives()
    count = len(moments.mean)
    # `where` and not a product: an unused target may be anything.
    kept = torch.where(used, targets.double(), 0.0)
    # k, sum G and sum G^2 of each column, then of each task.
    columns = torch.stack([used.sum(0, dtype=torch.float64), kept.sum(0), kept.square().sum(0)])  # [3, B]
    if tasks is None:
        sums = columns.sum(1, keepdim=True).expand(3, count)
    else:
        of_task = tasks[:, None] == torch.arange(count, device=tasks.device)  # [B, tasks]
        sums = columns @ of_task.double()  # a product and not a sum by index, whose order differs from run to run on a GPU
    sums = collectives.gather(sums.flatten()).sum(0).view(3, count)  # [learners, 3 * tasks] -> [3, tasks]
    rate = 1 - (1 - beta) ** sums[0]  # 0 for a task without a target
    means = sums[1:] / sums[0].clamp(min=1.0)
    return TargetMoments(*((1 - rate) * old + rate * new for old, new in zip(moments, means, strict=True)))


class PopArtHead(nn.Linear):
    """A linear layer with one value for each task, in units of the rewards.

    scale, shift: sigma and mu `[tasks]`, float32. As buffers they travel with the weights. names: of several tasks.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, features: int, tasks: int = 1, names: Sequence[str] = ()) -> None:
        super().__init__(features, tasks)
        self.names = names
        self.register_buffer("scale", torch.ones(tasks))
        self.register_buffer("shift", torch.zeros(tasks))

    def forward(self, features: Tensor) -> Tensor:
        """V `[N, tasks]` of features `[N, F]`."""
        return super().forward(features) * self.scale + self.shift  # V = sigma n + mu


class PopArt(RawValues):
    """The moments of a head's targets, and their way into the head.

    The first targets of an update count; those of later passes over the same steps do not. An update's values come from the
    head before it is rescaled. The rescaled head's own gradient is sigma / sigma_old times as large. All other gradients agree,
    since both heads have equal V. A refused step changes neither moments nor head.

    Args:
        head: of the network that learns.
        beta: the part that one target has of the moments.
    """

    def __init__(self, head: PopArtHead, beta: float) -> None:
        self._head, self._beta = head, beta
        tasks, device = head.out_features, head.weight.device
        # Moments of the head as it is: sigma = 1 and mu = 0 leave the initial weights alone.
        self.now = TargetMoments(*(make(tasks, dtype=torch.float64, device=device) for make in (torch.zeros, torch.ones)))
        self._next = TargetMoments(*(moment.clone() for moment in self.now))
        self.state = {"popart": self.now._asdict()}
        self._collectives: Collectives | None = None  # until the update's targets have come

    def begin(self, collectives: Collectives) -> None:
        """An update begins."""
        self._collectives = collectives
        _copy(self._next, self.now)

    def in_losses(
        self, values: Tensor, targets: Tensor, advantages: Tensor, used: Tensor, tasks: Tensor | None = None
    ) -> ValuesInLosses:
        self.observe(targets, used, tasks)
        compared = self.normalised(values, tasks), self.normalised(targets, tasks)
        return ValuesInLosses(*compared, self.scaled(advantages, tasks))

    def observe(self, targets: Tensor, used: Tensor, tasks: Tensor | None = None) -> None:
        """Take up the value targets `[T, B]` of an update's used steps, before its losses are computed."""
        if self._collectives is not None:
            _copy(self._next, with_targets(self.now, targets, used, self._beta, tasks, self._collectives))
            self._collectives = None

    def normalised(self, values: Tensor, tasks: Tensor | None = None) -> Tensor:
        mean, scale = (_of(each, values, tasks) for each in (self._next.mean, self._next.scale))
        return (values - mean) / scale

    def scaled(self, advantages: Tensor, tasks: Tensor | None = None) -> Tensor:
        """A / sigma of advantages of any shape."""
        return advantages / _of(self._next.scale, advantages, tasks)

    @torch.no_grad()
    def scale_gradients(self) -> None:
        """Turn the gradient of the head that made the values into that of the rescaled head."""
        # dV/dw is sigma_old x before, and sigma x after.
        _multiply(self._head.weight.grad, self._head.bias.grad, self._next.scale / self.now.scale)

    @torch.no_grad()
    def rescale(self) -> None:
        """Rescale the head. It belongs to the guarded step of the optimiser."""
        _multiply(self._head.weight, self._head.bias, self.now.scale / self._next.scale)
        # After the moments are settled this adds exactly 0, so that further steps of an update change nothing.
        self._head.bias.add_((self.now.mean - self._next.mean) / self._next.scale)
        self._show(self._next)

    @torch.no_grad()
    def settle(self, applied: Tensor) -> None:
        """Keep the new moments if the step was applied, bool `[]` on the device."""
        _copy(self.now, [torch.where(applied, new, old) for new, old in zip(self._next, self.now, strict=True)])
        self._show(self.now)

    def metrics(self) -> dict[str, Tensor]:
        """The moments, as means over the tasks, and those of each if there are several."""
        moments = {"popart/mean": self.now.mean, "popart/scale": self.now.scale}
        each = {f"{name}/{task}": own[i] for name, own in moments.items() for i, task in enumerate(self._head.names)}
        return {**{name: own.mean() for name, own in moments.items()}, **each}

    def _show(self, moments: TargetMoments) -> None:
        self._head.scale.copy_(moments.scale)
        self._head.shift.copy_(moments.mean)


def _multiply(weight: Tensor | None, bias: Tensor | None, factor: Tensor) -> None:
    """Multiply `[tasks, F]` and `[tasks]` in place by a factor `[tasks]`, which is exactly 1 if no moment changed."""
    assert weight is not None
    assert bias is not None
    weight.mul_(factor[:, None])
    bias.mul_(factor)


def _copy(moments: TargetMoments, others: TargetMoments | list[Tensor]) -> None:
    """Replace moments in place, so that a CUDA graph finds them in the same memory."""
    for kept, new in zip(moments, others, strict=True):
        kept.copy_(new)


def _of(numbers: Tensor, like: Tensor, tasks: Tensor | None) -> Tensor:
    """The numbers `[tasks]` of each column, in the dtype of `like`: `[B]`, or `[1]` if there is one task."""
    return (numbers if tasks is None else numbers[tasks]).to(like.dtype)
