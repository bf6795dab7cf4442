"""Running moments of observations and returns, in float64.

Moments are merged exactly (Chan, Golub and LeVeque 1979): merging batches in any order gives the moments of all values. They
begin with no value at all, so a feature far from zero has the right deviation from the first batch on. Every operation stays
on the device, so that no update waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from agents.engine.collectives import Collectives
from agents.networks.base import FeatureNetwork
from agents.networks.inputs import VARIANCE_EPSILON
from replay.batch import Batch

OLD_START = 1e-4
"""Weight of a mean of 0 and a variance of 1 that moments in old checkpoints began with, as in Gymnasium."""
_NO_WEIGHT = 1e-30
"""Smallest divisor in place of a weight: without values, 0 divided by it is 0."""
_FLOAT32_ROUNDING = 2.0**-24
"""Largest relative error of a number in float32. A deviation below it is that of rounding."""


class Moments(NamedTuple):
    """Moments of values, float64 on one device.

    weight: `[]`, the number of values. mean: `[F]`. m2: `[F]`, the sum of squared deviations from the mean.
    """

    weight: Tensor
    mean: Tensor
    m2: Tensor

    @property
    def variance(self) -> Tensor:
        """Population variance `[F]`; 0 without values."""
        return self.m2 / self.weight.clamp(min=_NO_WEIGHT)  # divided by n, not n - 1

    @property
    def deviation(self) -> Tensor:
        """Standard deviation `[F]` that values are divided by; 1 for a feature that has not varied so far.

        Such a feature has no scale yet. Dividing by the epsilon alone would send its first small change to the clip.
        """
        variance = self.variance
        varies = variance > (_FLOAT32_ROUNDING * self.mean).square()  # bool [F]
        return torch.where(varies, variance + VARIANCE_EPSILON, 1.0).sqrt()


def moments_of(values: Tensor, mask: Tensor) -> Moments:
    """Moments of those rows of values `[R, F]` that the mask, bool `[R]`, keeps; weight 0 if it keeps none."""
    exact, kept = values.double(), mask.unsqueeze(-1)
    weight = mask.sum(dtype=torch.float64)  # []
    # `where` and not a product: a value that is left out may be anything.
    mean = torch.where(kept, exact, 0.0).sum(0) / weight.clamp(min=1.0)
    return Moments(weight, mean, torch.where(kept, exact - mean, 0.0).square().sum(0))


def merged(one: Moments, other: Moments) -> Moments:
    """Moments of the values of both. Moments without values change nothing."""
    weight, distance = one.weight + other.weight, other.mean - one.mean  # n = n_a + n_b, D = mean_b - mean_a
    part = other.weight / weight.clamp(min=_NO_WEIGHT)  # n_b / n
    # mean = mean_a + D n_b / n,  M2 = M2_a + M2_b + D^2 n_a n_b / n
    return Moments(weight, one.mean + distance * part, one.m2 + other.m2 + distance.square() * one.weight * part)


def without_old_start(moments: Moments) -> Moments:
    """Moments of the values alone; those of an old checkpoint began with `OLD_START` values of mean 0 and variance 1.

    The weight shows it: a number of values is whole. `merged` is solved for the values' part, in float64.
    """
    weight = moments.weight.round()
    if weight == moments.weight:
        return moments
    mean = moments.mean * moments.weight / weight.clamp(min=1.0)
    of_start = OLD_START * (1.0 + mean * moments.mean)
    return Moments(weight, mean, (moments.m2 - of_start).clamp(min=0.0))


class RunningMoments:
    """Moments of F features that grow batch by batch, from none.

    Attributes:
        now: the moments.
        collectives: operations over all learners. Their batches are merged on each, in the order of their ranks.
    """

    def __init__(self, features: int, device: torch.device) -> None:
        self.now = Moments(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((), features, features)))
        self.collectives = Collectives()

    def with_batch(self, batch: Moments) -> Moments:
        """These moments and those of a batch, merged."""
        moments = self.now
        for each in (batch,) if self.collectives.count == 1 else self._batches_of_all(batch):
            moments = merged(moments, each)
        return moments

    def _batches_of_all(self, batch: Moments) -> list[Moments]:
        rows = self.collectives.gather(torch.cat([batch.weight[None], batch.mean, batch.m2]))  # [learners, 1 + 2 F]
        return [Moments(row[0], *row[1:].tensor_split(2)) for row in rows]

    def take(self, moments: Moments, applied: Tensor | None = None) -> None:
        """Replace the moments in place if `applied`, bool `[]` on the device, is true. None stands for true."""
        for kept, new in zip(self.now, moments, strict=True):
            kept.copy_(new if applied is None else torch.where(applied, new, kept))

    def state_dict(self) -> dict[str, Tensor]:
        """The moments by name. The tensors are live."""
        return self.now._asdict()

    def check_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError if these are not moments of as many features."""
        for name, tensor in self.now._asdict().items():
            got = state.get(name)
            if not isinstance(got, Tensor) or got.shape != tensor.shape or got.dtype != torch.float64:
                raise ValueError(f"wanted {name} of running moments as float64 {list(tensor.shape)}, got another")

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned, without the start of old checkpoints."""
        self.take(without_old_start(Moments(**state)))


class ObservationMoments(RunningMoments):
    """Running moments of a network's vectors. They set the scale of its input, which travels with the weights."""

    def __init__(self, network: FeatureNetwork) -> None:
        self._network = network
        features = network.parts[-1].shape[-1]
        super().__init__(features, next(network.parameters()).device)

    def calibrate(self, observations: Tensor) -> None:
        """Merge N observations of random play, so that the first batch is normalised too."""
        vectors = self._network.vectors(observations)
        self.take(self.with_batch(moments_of(vectors, torch.ones(len(vectors), dtype=torch.bool, device=vectors.device))))
        self.rescale()

    def merge(self, batch: Batch, applied: Tensor | None = None, *, rescales: bool = True) -> None:
        """Merge the fresh columns of a batch that was learned from; nothing if `applied`, bool `[]`, is false.

        rescales: whether the network's scale follows at once; otherwise with the next call of `rescale`.

        Rows 0 to T-1 count, because row T is row 0 of the next trajectory. The row of an autoreset counts too: it holds the
        final observation of its episode, whose value is needed.
        """
        rows = batch.observations[:-1]  # [T, B, ...]
        fresh = (~batch.is_replay).expand(rows.shape[:2]).flatten()  # [B] -> bool [T * B]
        self.take(self.with_batch(moments_of(self._network.vectors(rows.flatten(0, 1)), fresh)), applied)
        if rescales:
            self.rescale()

    def rescale(self) -> None:
        """Set the scale of the network's input by the moments."""
        self._network.set_vector_scale(self.now.mean, 1.0 / self.now.deviation)
