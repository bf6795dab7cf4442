"""The part of a network that reads observations: it unpacks, centres, scales and casts them for the torso.

The centre and the scale are constants of the network, set before training (`calibrate`) or moved during it
(`set_vector_scale`). They are saved, published and exported with the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from agents.networks.inputs import (
    InputScale,
    calibrate,
    channels_last_zeros,
    input_parts,
    normalised,
    part_of,
    scale_of,
    scaled,
    unpack,
)
from wrappers.spaces import Leaf, Packing

Observations = Tensor | Mapping[str, Tensor]
"""N observations `[N, *observation_shape]`. Those with leaves are packed bytes, or name -> leaf `[N, S, *shape]`."""


class Observing(nn.Module):
    """Reads observations. Stacked frames become channels.

    parts: of an observation, each an image or all vectors together. packing: of its leaves, None without leaves.

    Args:
        observation_shape: `[S, *frame_shape]`.
        leaves: the parts of a frame that has several.
        normalises: whether vectors are scaled by running moments. Raises ValueError if there are no vectors.
    """

    input_mean: Tensor
    input_scale: Tensor

    def __init__(self, observation_shape: tuple[int, ...], leaves: tuple[Leaf, ...], *, normalises: bool) -> None:
        super().__init__()
        self._observation_shape = observation_shape
        self.packing = Packing(leaves) if leaves else None
        self.parts = input_parts(observation_shape, leaves)
        self._normalised = tuple(normalises and part.is_vector for part in self.parts)
        if normalises and not any(self._normalised):
            shape = list(self.parts[0].shape)
            raise ValueError(f"normalise_observations: wanted vectors, got images {shape}; --calibrate_input scales images")
        if self.packing:
            pairs = zip(self.parts, self._normalised, strict=True)
            self.inputs = nn.ModuleList(InputScale(part.input_shape, normalised=own) for part, own in pairs)
        else:
            shape_in = self.parts[0].input_shape
            self.register_buffer("input_mean", channels_last_zeros(shape_in))
            self.register_buffer("input_scale", torch.ones(shape_in if self._normalised[0] else ()))

    def inputs_of(self, observations: Observations, dtype: torch.dtype) -> list[Tensor]:
        """The inputs of the torso, `[N, *input_shape]` for each part."""
        if self.packing is None:
            assert isinstance(observations, Tensor)
            self._check_shape(observations)
            values = [observations]
        else:
            leaves = self.leaves_of(observations)
            values = [part_of(part, leaves) for part in self.parts]
        prepare = [normalised if own else scaled for own in self._normalised]
        return [prepare[index](value, *self._scale(index), dtype) for index, value in enumerate(values)]

    def leaves_of(self, observations: Observations) -> Mapping[str, Tensor]:
        """The leaves, `[N, S, *shape]` each, of N observations that have several. Raises ValueError for other shapes."""
        assert self.packing is not None
        if isinstance(observations, Tensor):
            self._check_shape(observations)
            return unpack(self.packing, observations)
        for leaf in self.packing.leaves:
            wanted, got = (self._observation_shape[0], *leaf.shape), observations[leaf.name].shape
            if got[1:] != wanted:
                raise ValueError(f"{leaf.name}: wanted [N, {', '.join(map(str, wanted))}], got {list(got)}")
        return observations

    def vectors(self, observations: Observations) -> Tensor:
        """The newest frame of the features that `normalise_observations` normalises, `[N, F]`; bytes are scaled to 0 .. 1."""
        if self.packing is None:
            assert isinstance(observations, Tensor)
            newest = observations[:, -1]
            return newest.float() * scale_of(newest)
        return part_of(self.parts[-1], self.leaves_of(observations))[:, -1]

    def float_inputs(self, observations: Tensor) -> dict[str, Tensor]:
        """The parts of N observations that may hold non-finite numbers, by name."""
        if self.packing is None:
            return {"observations": observations} if observations.is_floating_point() else {}
        leaves = unpack(self.packing, observations)
        return {f"observations.{name}": leaf for name, leaf in leaves.items() if leaf.is_floating_point()}

    @torch.no_grad()
    def set_vector_scale(self, mean: Tensor, scale: Tensor) -> None:
        """Set the centre and the scale of every normalised feature, `[F]` each. Stacked frames share them."""
        for buffer, value in zip(self._scale(len(self.parts) - 1), (mean, scale), strict=True):
            buffer.copy_(value.expand_as(buffer))

    def calibrate(self, observations: Tensor) -> None:
        """Centre and scale the input by the statistics of N observations `[N, *observation_shape]` of random play.

        Each pixel's mean is subtracted, and all pixels are divided by their common standard deviation. Most of an Atari frame
        never changes. Without calibration the features of any two states differ by a few per cent only, and gradient descent
        first learns what all states have in common. Burda et al. 2018 (arXiv:1810.12894, section 2.4) also fix the statistics
        from random play, but for every pixel apart. Normalised vectors keep their running moments.
        """
        leaves = self.leaves_of(observations) if self.packing else {}
        for index, part in enumerate(self.parts):
            if not self._normalised[index]:
                calibrate(part_of(part, leaves) if part.names else observations, *self._scale(index))

    def _scale(self, index: int) -> tuple[Tensor, Tensor]:
        """Mean and scale of a part's input."""
        if self.packing is None:
            return self.input_mean, self.input_scale
        kept = self.inputs[index]
        assert isinstance(kept, InputScale)
        return kept.mean, kept.scale

    def _check_shape(self, observations: Tensor) -> None:
        if observations.shape[1:] != self._observation_shape:
            wanted = f"[N, {', '.join(map(str, self._observation_shape))}]"
            raise ValueError(f"observations: wanted {wanted}, got {list(observations.shape)}")
