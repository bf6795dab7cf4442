"""How observations become a torso's input: parts, layout in memory, centring and scaling.

The centre and the scale are constants of the network, set before training (`calibrate`) or moved during it
(`set_vector_scale`). They are saved, published and exported with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wrappers.spaces import ACTION_MASK, TASK, Leaf, Packing

Shape = tuple[int, ...]

Observations = Tensor | Mapping[str, Tensor]
"""N observations `[N, *observation_shape]`. Those with leaves are packed bytes, or name -> leaf `[N, S, *shape]`."""
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
    stack, read = observation_shape[0], [leaf for leaf in leaves if leaf.name not in (ACTION_MASK, TASK)]
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
        observations = observations.permute(0, 2, 3, 4, 1).flatten(3).permute(0, 3, 1, 2)  # [N, H, W, C*S] -> [N, C*S, H, W]
    if observations.dim() == 4:
        observations = observations.contiguous(memory_format=torch.channels_last)
    return observations


def scale_of(observations: Tensor) -> float:
    """Factor that scales raw observations: 1/255 for uint8, otherwise 1."""
    return _BYTE_SCALE if observations.dtype == torch.uint8 else 1.0


class InputScale(nn.Module):
    """The centre and the scale of one part's input, as buffers of the network.

    normalised: whether every feature has a scale of its own, which running moments change while training.
    tasks: of an image, how many have a centre `[tasks, *shape]` and a scale `[tasks]` of their own; 0 for one of all.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: Shape, *, normalised: bool, tasks: int = 0) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("mean", channels_last_zeros(shape, tasks))
        self.register_buffer("scale", torch.ones(shape if normalised else (tasks,) if tasks else ()))


def scaled(observations: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype, tasks: Tensor | None = None) -> Tensor:
    """Inputs of a torso, `[N, *input_shape]` in `dtype`: raw observations in one multiplication and one addition.

    Bytes are exact in every dtype. Floating-point numbers may be far from zero, so they are centred before the cast. tasks:
    int64 `[N]`, the task of each observation. It counts for images, whose `mean` and `scale` then have a row for each task.
    """
    inputs = network_input(observations)
    if tasks is not None and scale.dim():
        scale = scale.view(-1, 1, 1, 1)  # [tasks], beside mean [tasks, C, H, W]
    offset = -mean * scale  # (x - mean) scale = x scale + offset, one fused operation
    if not inputs.is_floating_point():
        offset, inputs, scale = offset.to(dtype), inputs.to(dtype), (scale * scale_of(observations)).to(dtype)
    if tasks is not None and scale.dim():
        offset = offset.movedim(1, -1).index_select(0, tasks).movedim(-1, 1)  # [N, C, H, W] channels-last, as the inputs
        scale = scale.index_select(0, tasks)
    return torch.addcmul(offset, inputs, scale).to(dtype)


def normalised(observations: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors `[N, S, F]` centred and scaled by feature and clipped, in `dtype`.

    The mean is taken off in float32, before any rounding: features may be far from zero.
    """
    values = observations.float() * scale_of(observations)  # [N, S, F]
    return ((values - mean) * scale).clamp(-CLIP, CLIP).to(dtype)


@torch.no_grad()
def calibrate(observations: Tensor, mean: Tensor, scale: Tensor) -> None:
    """Fill mean and scale `[]` with the statistics of N observations `[N, *observation_shape]` of random play.

    Observations that are all equal keep the scale 1: their deviation is the rounding of float32 alone.
    """
    factor, exact = scale_of(observations), torch.float64
    parts = [network_input(part) for part in observations.split(_CALIBRATED_AT_ONCE)]
    # A mean for each pixel, [*input_shape].
    average = torch.stack([part.sum(0, dtype=exact) for part in parts]).sum(0) / len(observations)
    mean.copy_(factor * average)
    squares = torch.stack([(factor * part.float() - mean).square().sum(dtype=exact) for part in parts])
    deviation = math.sqrt(float(squares.sum()) / (len(observations) * average.numel()))  # one number for all pixels
    varies = not torch.equal(observations, observations[:1].expand_as(observations))
    scale.fill_(1.0 / deviation if varies and deviation > 0 else 1.0)


def channels_last_zeros(shape: Shape, tasks: int = 0) -> Tensor:
    """Zeros in the memory layout of one row of a torso's input, or of a row for each task, `[tasks, *shape]`."""
    rows = (tasks,) if tasks else ()
    return torch.zeros(*rows, *shape[1:], *shape[:1]).movedim(-1, len(rows))


class ObservationEncoder(nn.Module):
    """Reads observations. Stacked frames become channels.

    parts: of an observation, each an image or all vectors together. packing: of its leaves, None without leaves.

    Args:
        observation_shape: `[S, *frame_shape]`.
        leaves: the parts of a frame that has several.
        normalises: whether vectors are scaled by running moments. Raises ValueError if there are no vectors.
        tasks: how many environments there are whose observations name them; 0 if they name none.
    """

    input_mean: Tensor
    input_scale: Tensor

    def __init__(
        self, observation_shape: tuple[int, ...], leaves: tuple[Leaf, ...], *, normalises: bool, tasks: int = 0
    ) -> None:
        super().__init__()
        self._observation_shape, self._tasks = observation_shape, tasks
        self.packing = Packing(leaves) if leaves else None
        self.parts = input_parts(observation_shape, leaves)
        self._normalised = tuple(normalises and part.is_vector for part in self.parts)
        if normalises and not any(self._normalised):
            shape = list(self.parts[0].shape)
            raise ValueError(f"normalise_observations: wanted vectors, got images {shape}; --calibrate_input scales images")
        if self.packing:
            # A constant of a vector may be all that tells two tasks apart, so vectors have one centre.
            counts = [0 if part.is_vector else tasks for part in self.parts]
            each = zip(self.parts, self._normalised, counts, strict=True)
            self.inputs = nn.ModuleList(InputScale(part.input_shape, normalised=own, tasks=count) for part, own, count in each)
        else:
            shape_in = self.parts[0].input_shape
            self.register_buffer("input_mean", channels_last_zeros(shape_in))
            self.register_buffer("input_scale", torch.ones(shape_in if self._normalised[0] else ()))

    def inputs_of(self, observations: Observations, dtype: torch.dtype) -> list[Tensor]:
        """The inputs of the torso, `[N, *input_shape]` for each part."""
        if self.packing is None:
            assert isinstance(observations, Tensor)
            if observations.shape[1:] != self._observation_shape:
                raise self._wrong_shape(observations)
            values = [observations]
        else:
            leaves = self.leaves_of(observations)
            values = [part_of(part, leaves) for part in self.parts]
        tasks = self.task_of(observations) if self._tasks else None
        return [
            normalised(value, *self._scale(index), dtype)
            if self._normalised[index]
            else scaled(value, *self._scale(index), dtype, tasks)
            for index, value in enumerate(values)
        ]

    def task_of(self, observations: Observations) -> Tensor | None:
        """The task of each observation `[*dims, *observation_shape]`, int64 `[*dims]`; None if there is one task."""
        if not self._tasks:
            return None
        assert self.packing is not None
        if isinstance(observations, Tensor):
            newest = observations[..., -1, self.packing.parts[TASK]]
        else:
            newest = observations[TASK][..., -1, :]
        return newest.squeeze(-1).long()

    def leaves_of(self, observations: Observations) -> Mapping[str, Tensor]:
        """The leaves, `[N, S, *shape]` each, of N observations that have several. Raises ValueError for other shapes."""
        assert self.packing is not None
        if isinstance(observations, Tensor):
            if observations.shape[1:] != self._observation_shape:
                raise self._wrong_shape(observations)
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
            newest = observations[:, -1]  # older frames of a stack were counted when they were the newest
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

        The images of each of several tasks have statistics of their own: those of two games together would mostly measure how
        the games differ, and what moves in one of them would become faint. A task without an observation gets the
        statistics of all.
        """
        leaves = self.leaves_of(observations) if self.packing else {}
        tasks = self.task_of(observations)
        for index, part in enumerate(self.parts):
            if self._normalised[index]:
                continue
            values, (mean, scale) = part_of(part, leaves) if part.names else observations, self._scale(index)
            if tasks is None or part.is_vector:
                calibrate(values, mean, scale)
                continue
            for task in range(self._tasks):
                own = values[tasks == task]
                calibrate(own if len(own) else values, mean[task], scale[task])

    def _scale(self, index: int) -> tuple[Tensor, Tensor]:
        """Mean and scale of a part's input."""
        if self.packing is None:
            return self.input_mean, self.input_scale
        kept = self.inputs[index]
        assert isinstance(kept, InputScale)
        return kept.mean, kept.scale

    def _wrong_shape(self, observations: Tensor) -> ValueError:
        wanted = f"[N, {', '.join(map(str, self._observation_shape))}]"
        return ValueError(f"observations: wanted {wanted}, got {list(observations.shape)}")
