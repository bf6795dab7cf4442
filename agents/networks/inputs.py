"""How observations become a torso's input: parts, layout in memory, centring and scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wrappers.spaces import ACTION_MASK, Leaf, Packing

Shape = tuple[int, ...]

_BYTE_SCALE = 1.0 / 255.0
_CALIBRATED_AT_ONCE = 50  # observations; a float32 copy of all would be the largest memory of a whole run
CLIP = 10.0
"""Largest normalised feature, in standard deviations."""
VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True)
class InputPart:
    """A part of an observation that one torso reads: an image, or all vectors together.

    names: its leaves; empty if the observation has no leaves. shape: `[S, ...]`.
    """

    names: tuple[str, ...]
    shape: Shape

    @property
    def is_vector(self) -> bool:
        return len(self.shape) == 2

    @property
    def input_shape(self) -> Shape:
        """The shape of one observation after `network_input`."""
        if len(self.shape) == 4:
            stack, height, width, colours = self.shape
            return (stack * colours, height, width)
        return self.shape


def input_parts(observation_shape: Shape, leaves: tuple[Leaf, ...]) -> tuple[InputPart, ...]:
    """The parts of an observation `[S, *frame_shape]`: images in their order, then all vectors as one. Raises ValueError."""
    if not leaves:
        return (InputPart((), observation_shape),)
    stack, read = observation_shape[0], [leaf for leaf in leaves if leaf.name != ACTION_MASK]
    if not read:
        raise ValueError(f"observations: wanted a leaf beside {ACTION_MASK}, got none")
    if wrong := next((leaf for leaf in read if len(leaf.shape) > 3), None):
        raise ValueError(f"observations: wanted {wrong.name} as a vector or an image, got shape {list(wrong.shape)}")
    images = [InputPart((leaf.name,), (stack, *leaf.shape)) for leaf in read if len(leaf.shape) > 1]
    vectors = [leaf for leaf in read if len(leaf.shape) <= 1]
    count = sum(math.prod(leaf.shape) for leaf in vectors)
    together = [InputPart(tuple(leaf.name for leaf in vectors), (stack, count))] if vectors else []
    return (*images, *together)


def unpack(packing: Packing, observations: Tensor) -> dict[str, Tensor]:
    """The leaves, `[N, S, *shape]` each, of packed observations uint8 `[N, S, bytes]`, on the same device."""
    leaves = {}
    for leaf in packing.leaves:
        part, dtype = observations[..., packing.parts[leaf.name]], getattr(torch, leaf.dtype)
        if dtype != torch.uint8:
            # A copy begins at an aligned address and has its bytes in order; a slice may have neither.
            part = part.clone(memory_format=torch.contiguous_format).view(dtype)
        leaves[leaf.name] = part.reshape(*part.shape[:-1], *leaf.shape)
    return leaves


def part_of(part: InputPart, leaves: Mapping[str, Tensor]) -> Tensor:
    """The observations `[N, *part.shape]` of one part. Vectors of bytes are scaled to 0 .. 1."""
    if not part.is_vector:
        return leaves[part.names[0]]
    vectors = [leaves[name].flatten(2) if leaves[name].dim() > 2 else leaves[name].unsqueeze(-1) for name in part.names]
    return torch.cat([vector.float() * scale_of(vector) for vector in vectors], -1)


def network_input(observations: Tensor) -> Tensor:
    """N observations as a torso reads them, values and dtype unchanged.

    Colour stacks `[N, S, H, W, C]` become `[N, C*S, H, W]`, channel c*S + s being colour c of frame s. Other shapes stay.

    Images come out channels-last in memory, with which convolutions on a CPU train about 1.5 times faster. The layout
    changes while the data are still bytes, a quarter of the traffic. It is free if the stack is innermost already, as
    `stack_frames` builds it.
    """
    if observations.dtype != torch.uint8 and not observations.dtype.is_floating_point:
        raise ValueError(f"observations: wanted uint8 or floating point, got {observations.dtype}")
    if observations.dim() == 5:
        observations = observations.permute(0, 2, 3, 4, 1).flatten(3).permute(0, 3, 1, 2)
    if observations.dim() == 4:
        observations = observations.contiguous(memory_format=torch.channels_last)
    return observations


def scale_of(observations: Tensor) -> float:
    """Factor that scales raw observations: 1/255 for uint8, otherwise 1."""
    return _BYTE_SCALE if observations.dtype == torch.uint8 else 1.0


class InputScale(nn.Module):
    """The centre and the scale of one part's input, as buffers of the network.

    normalised: whether every feature has a scale of its own, which running moments change while training.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: Shape, *, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("mean", channels_last_zeros(shape))
        self.register_buffer("scale", torch.ones(shape if normalised else ()))


def scaled(observations: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs of a torso, `[N, *input_shape]` in `dtype`: raw observations in one multiplication and one addition.

    Bytes are exact in every dtype. Floating-point numbers may be far from zero, so they are centred before the cast.
    """
    inputs = network_input(observations)
    offset = -mean * scale
    if inputs.is_floating_point():
        return torch.addcmul(offset, inputs, scale).to(dtype)
    return torch.addcmul(offset.to(dtype), inputs.to(dtype), (scale * scale_of(observations)).to(dtype))


def normalised(observations: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors `[N, S, F]` centred and scaled by feature and clipped, in `dtype`.

    The mean is taken off in float32, before any rounding: features may be far from zero.
    """
    values = observations.float() * scale_of(observations)
    return ((values - mean) * scale).clamp(-CLIP, CLIP).to(dtype)


@torch.no_grad()
def calibrate(observations: Tensor, mean: Tensor, scale: Tensor) -> None:
    """Fill mean and scale `[]` with the statistics of N observations `[N, *observation_shape]` of random play.

    Observations that are all equal keep the scale 1: their deviation is the rounding of float32 alone.
    """
    factor, exact = scale_of(observations), torch.float64
    parts = [network_input(part) for part in observations.split(_CALIBRATED_AT_ONCE)]
    average = torch.stack([part.sum(0, dtype=exact) for part in parts]).sum(0) / len(observations)
    mean.copy_(factor * average)
    squares = torch.stack([(factor * part.float() - mean).square().sum(dtype=exact) for part in parts])
    deviation = math.sqrt(float(squares.sum()) / (len(observations) * average.numel()))
    varies = not torch.equal(observations, observations[:1].expand_as(observations))
    scale.fill_(1.0 / deviation if varies and deviation > 0 else 1.0)


def channels_last_zeros(shape: Shape) -> Tensor:
    """Zeros in the memory layout of one row of a torso's input."""
    return torch.zeros(shape[1:] + shape[:1]).movedim(-1, 0)
