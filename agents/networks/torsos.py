"""Torsos: observations in, features out. One class for each name of `--network`.

Sources: `nature` is the network of Mnih et al. 2015 (doi:10.1038/nature14236). `impala_shallow` is that of Mnih et al. 2016
(arXiv:1602.01783), which IMPALA (arXiv:1802.01561) uses as its shallow model for Atari. `impala_deep` is the residual network
of IMPALA's figure 3, without its LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.networks.spectral import SpectralConv2d

if TYPE_CHECKING:
    from agents.networks.settings import NetworkSettings

Shape = tuple[int, ...]

_HIDDEN_GAIN = math.sqrt(2.0)
_RESIDUAL_GAIN = 0.1
_CHANNELS_AT_ONCE = 8
SIMBA = "simba"
SIMBA_WIDTH = 4
"""Width of a SimBa block inside, in that of its input."""
HIDDEN_SIZES = "256,256"
CONVOLUTIONS = "32x8x4,64x4x2,64x3x1"
MOST_LAYERS, LARGEST_LAYER, LARGEST_KERNEL = 16, 65536, 64

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
"""Name on the command line (`--activation`) -> class."""


class Convolution(NamedTuple):
    """One convolution without padding. kernel and stride: pixels in both directions."""

    channels: int
    kernel: int
    stride: int


def parse_hidden_sizes(text: str) -> tuple[int, ...]:
    """The sizes that `256,256` lists, first layer first. Raises ValueError."""
    sizes = [_whole(part, LARGEST_LAYER) for part in text.split(",")]
    if len(sizes) > MOST_LAYERS or None in sizes:
        wanted = f"1 to {MOST_LAYERS} sizes from 1 to {LARGEST_LAYER} such as {HIDDEN_SIZES}"
        raise ValueError(f"hidden_sizes: wanted {wanted}, got {text!r}")
    return tuple(size for size in sizes if size)


def parse_simba_sizes(text: str) -> tuple[int, ...]:
    """The sizes that `512,512` lists, one for each block of a SimBa network. They are equal. Raises ValueError."""
    sizes = parse_hidden_sizes(text)
    if len(set(sizes)) > 1:
        raise ValueError(f"hidden_sizes: wanted equal sizes for --network=simba, one for each block, got {text}")
    return sizes


def parse_convolutions(text: str) -> tuple[Convolution, ...]:
    """The convolutions that `32x8x4,64x4x2` lists, first layer first. Raises ValueError."""
    layers = [[_whole(number, LARGEST_LAYER) for number in part.split("x")] for part in text.split(",")]
    found = tuple(Convolution(*(number or 0 for number in layer)) for layer in layers if len(layer) == 3)
    good = all(min(layer) > 0 and max(layer[1:]) <= LARGEST_KERNEL for layer in found)
    if len(found) != len(layers) or len(found) > MOST_LAYERS or not good:
        wanted = f"1 to {MOST_LAYERS} layers CHANNELSxKERNELxSTRIDE such as {CONVOLUTIONS}, kernels and strides up to 64"
        raise ValueError(f"conv: wanted {wanted}, got {text!r}")
    return found


def _whole(text: str, most: int) -> int | None:
    """The whole number from 1 to `most` that a text writes, None for any other text."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 and 0 < int(digits) <= most else None


class Torso(nn.Sequential):
    """Layers that turn prepared observations into features `[N, feature_count]`.

    minimum_frame_size: the smallest height and width that the torso can convolve; None for a torso that takes any observation.
    reads: the settings of `--network` that the torso depends on. Others are refused where they are not at their defaults.
    """

    minimum_frame_size: int | None = None
    feature_count = 256
    reads: ClassVar[tuple[str, ...]] = ("activation", "layer_norm")

    def gain(self, layer: nn.Module) -> float:
        """Gain of a layer's initial orthogonal weights."""
        return _HIDDEN_GAIN


class Nature(Torso):
    """Three convolutions (8x8x32 stride 4, 4x4x64 stride 2, 3x3x64 stride 1) and 512 hidden units."""

    minimum_frame_size = 36
    feature_count = 512

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        layers = [Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)]
        super().__init__(*_convolutions(observation_shape, layers, (self.feature_count,), settings))


class ImpalaShallow(Torso):
    """Two convolutions (8x8x16 stride 4, 4x4x32 stride 2) and 256 hidden units."""

    minimum_frame_size = 20

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        layers = [Convolution(16, 8, 4), Convolution(32, 4, 2)]
        super().__init__(*_convolutions(observation_shape, layers, (self.feature_count,), settings))


class Conv(Torso):
    """The convolutions of `--conv` and the hidden layers of `--hidden_sizes`. Other convolutions read other frame sizes."""

    minimum_frame_size = Nature.minimum_frame_size
    reads = ("activation", "layer_norm", "conv", "hidden_sizes")

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        hidden = parse_hidden_sizes(settings.hidden_sizes)
        super().__init__(*_convolutions(observation_shape, parse_convolutions(settings.conv), hidden, settings))
        self.feature_count = hidden[-1]


class ImpalaDeep(Torso):
    """Three sections of 16, 32 and 32 channels (convolution, max-pooling, two residual blocks) and 256 hidden units.

    `--width` multiplies channels and units. `--adaptive_pool` pools the last section's image to a fixed size, `--spectral_norm`
    normalises the residual convolutions (Beyond the Rainbow, arXiv:2411.03820).
    """

    minimum_frame_size = 1
    reads = ("activation", "layer_norm", "width", "adaptive_pool", "spectral_norm")

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        channels, height, width = image_shape(observation_shape)
        layers: list[nn.Module] = []
        for section_channels in (16 * settings.width, 32 * settings.width, 32 * settings.width):
            convolution = _SectionConv(channels, section_channels, 3, padding=1)
            layers += normalised(convolution, (section_channels, height, width), settings)
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            channels, height, width = section_channels, (height + 1) // 2, (width + 1) // 2
            layers += [_ResidualBlock((channels, height, width), settings) for _ in range(2)]
        layers.append(ACTIVATIONS[settings.activation]())
        if settings.adaptive_pool:
            height = width = settings.adaptive_pool
            layers.append(_RegionMaxPool(settings.adaptive_pool))
        features = self.feature_count * settings.width
        super().__init__(*layers, nn.Flatten(), *hidden_layers(channels * height * width, (features,), settings))
        self.feature_count = features

    def gain(self, layer: nn.Module) -> float:
        """Residual branches start small, and no rectifier follows a section's convolution. Otherwise features start huge."""
        if any(isinstance(block, _ResidualBlock) and layer is block.second for block in self.modules()):
            return _RESIDUAL_GAIN
        return 1.0 if isinstance(layer, nn.Conv2d) else _HIDDEN_GAIN


class _RegionMaxPool(nn.Module):
    """The largest value of each of `count` x `count` regions of an image, `[B, C, H, W]` -> `[B, C, count, count]`.

    Region i covers rows floor(i H / count) to ceil((i + 1) H / count), and columns likewise.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, images: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            return functional.adaptive_max_pool2d(images, self.count)
        for dim in (-2, -1):  # the same from operations that ONNX has: the largest of each region's rows, then of its columns
            length = images.shape[dim]
            bounds = [(length * i // self.count, -(-length * (i + 1) // self.count)) for i in range(self.count)]
            images = torch.stack([images.narrow(dim, low, high - low).amax(dim) for low, high in bounds], dim)
        return images


class Mlp(Torso):
    """The hidden layers of `--hidden_sizes` on the flattened observation, for vectors and frames of a few pixels."""

    reads = ("activation", "layer_norm", "hidden_sizes")

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        sizes = parse_hidden_sizes(settings.hidden_sizes)
        super().__init__(nn.Flatten(), *hidden_layers(math.prod(observation_shape), sizes, settings))
        self.feature_count = sizes[-1]


class Simba(Torso):
    """SimBa (Lee et al. 2024, arXiv:2410.09754): a linear layer, a residual block for each hidden size, and LayerNorm.

    Orthogonal weights of a block have the variance that He's have there (arXiv:1502.01852).
    """

    reads = ("activation", "hidden_sizes")

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        sizes = parse_simba_sizes(settings.hidden_sizes)
        blocks = [_SimbaBlock(size, settings.activation) for size in sizes]
        super().__init__(nn.Flatten(), nn.Linear(math.prod(observation_shape), sizes[0]), *blocks, nn.LayerNorm(sizes[0]))
        self.feature_count = sizes[0]

    def gain(self, layer: nn.Module) -> float:
        if layer is self[1]:
            return 1.0  # no activation function follows
        assert isinstance(layer, nn.Linear)
        # Orthogonal numbers have the variance gain^2 / max(inputs, outputs), He's have 2 / inputs.
        return math.sqrt(2.0 * max(layer.in_features, layer.out_features) / layer.in_features)


class Flat(Torso):
    """The observation itself as features, so that the heads are linear in it. It has no weights."""

    reads = ()

    def __init__(self, observation_shape: Shape, settings: NetworkSettings) -> None:
        super().__init__(nn.Flatten())
        self.feature_count = math.prod(observation_shape)


TORSOS: dict[str, Callable[[Shape, NetworkSettings], Torso]] = {
    "nature": Nature,
    "impala_shallow": ImpalaShallow,
    "impala_deep": ImpalaDeep,
    "conv": Conv,
    "mlp": Mlp,
    SIMBA: Simba,
    "flat": Flat,
}
"""Name on the command line (`--network`) -> class, which is called with the observation shape `[S, ...]` and the settings."""

SMALL_CONVOLUTIONS = "--network=conv --conv=16x3x1,32x3x1"
"""Convolutions for boards, of which they leave one pixel or more if the board is not smaller than `SMALLEST_BOARD`."""
SMALLEST_BOARD = 5
_SMALLEST = (("nature", Nature.minimum_frame_size), ("impala_shallow", ImpalaShallow.minimum_frame_size))


def make_torso(settings: NetworkSettings, observation_shape: Shape) -> Torso:
    """The torso that the settings name, for observations `[S, ...]`. Raises ValueError if it cannot read them."""
    name = settings.network
    if name not in TORSOS:
        raise ValueError(f"network: wanted one of {sorted(TORSOS)} or FILE.py:CLASS, got {name!r}")
    try:
        return TORSOS[name](observation_shape, settings)
    except ValueError as error:
        raise ValueError(f"network {name}: {error}; --network={suitable_network(observation_shape)[0]} fits") from None


def suitable_network(observation_shape: Shape) -> tuple[str, str]:
    """The name of a torso that suits observations `[S, ...]`, and the reason."""
    if len(observation_shape) not in (3, 4):
        return "mlp", "the observations are vectors"
    height, width = observation_shape[1:3]
    for name, smallest in _SMALLEST:
        if smallest is not None and min(height, width) >= smallest:
            return name, f"the observations are images of {height}x{width}, at least {smallest}x{smallest}"
    smallest = ImpalaShallow.minimum_frame_size
    hint = f"{SMALL_CONVOLUTIONS} convolves them" if min(height, width) >= SMALLEST_BOARD else "too small to convolve"
    return "mlp", f"the observations are images of {height}x{width}, with a side below {smallest}; {hint}"


def image_shape(observation_shape: Shape, minimum: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of the torso's input: the stack and the colours become channels. Raises ValueError."""
    if len(observation_shape) not in (3, 4):
        raise ValueError(f"wanted observations [S, H, W] or [S, H, W, C], got {list(observation_shape)}")
    stack, height, width, *colours = observation_shape
    if min(height, width) < minimum:
        raise ValueError(f"wanted frames of at least {minimum}x{minimum}, got {height}x{width}")
    return stack * math.prod(colours), height, width


def hidden_layers(inputs: int, sizes: Sequence[int], settings: NetworkSettings) -> list[nn.Module]:
    """Linear layers of these sizes, each followed by its normalisation, if that is wanted, and the activation function."""
    layers: list[nn.Module] = []
    for before, size in zip((inputs, *sizes), sizes, strict=False):
        layers += [*normalised(nn.Linear(before, size), (size,), settings), ACTIVATIONS[settings.activation]()]
    return layers


def normalised(layer: nn.Module, shape: Shape, settings: NetworkSettings) -> list[nn.Module]:
    """The layer and, with `--layer_norm`, LayerNorm (arXiv:1607.06450) over its whole output for one observation.

    shape: of that output, `[features]` or `[C, H, W]`. Each number of it has a scale and an offset of its own.
    """
    return [layer, nn.LayerNorm(shape)] if settings.layer_norm else [layer]


def _convolutions(
    observation_shape: Shape, convolutions: Sequence[Convolution], hidden: Sequence[int], settings: NetworkSettings
) -> list[nn.Module]:
    """Convolutions without padding, then hidden layers. An activation function follows each. Raises ValueError."""
    channels, height, width = image_shape(observation_shape, _smallest_frame(convolutions))
    layers: list[nn.Module] = []
    for out_channels, kernel, stride in convolutions:
        convolution = nn.Conv2d(channels, out_channels, kernel, stride)
        channels, height, width = out_channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1  # no padding
        layers += [*normalised(convolution, (channels, height, width), settings), ACTIVATIONS[settings.activation]()]
    return [*layers, nn.Flatten(), *hidden_layers(channels * height * width, hidden, settings)]


def _smallest_frame(convolutions: Sequence[Convolution]) -> int:
    """The height and width of the smallest frame of which the convolutions leave one pixel."""
    size = 1
    for _, kernel, stride in reversed(convolutions):
        size = (size - 1) * stride + kernel  # from the last layer backwards: inputs of `size` outputs
    return size


class _SectionConv(nn.Conv2d):
    """A convolution that pads channels with zeros, on a GPU in bfloat16, to a multiple of eight.

    cuDNN convolves on the matrix units only if the channels are a multiple of eight, and Atari has four. On an H200 the pass
    for 256 observations takes 1.55 ms with the padding and 2.71 ms without it.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """`[N, in_channels, H, W]` in, `[N, out_channels, H, W]` out."""
        missing = -self.in_channels % _CHANNELS_AT_ONCE  # channels of zeros, which add nothing
        if not missing or not inputs.is_cuda or inputs.dtype != torch.bfloat16:
            return super().forward(inputs)
        padded, weight = (functional.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (inputs, self.weight))
        return functional.conv2d(padded, weight, self.bias, self.stride, self.padding)


class _SimbaBlock(nn.Module):
    """h + W2 f(W1 LayerNorm(h)) with activation function f, `[N, size]` in and out, four times as wide inside."""

    def __init__(self, size: int, activation: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.first, self.second = nn.Linear(size, SIMBA_WIDTH * size), nn.Linear(SIMBA_WIDTH * size, size)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, inputs: Tensor) -> Tensor:
        residual: Tensor = self.second(self.activation(self.first(self.norm(inputs))))
        return inputs + residual  # the identity, without an activation function, lets gradients pass every block


class _ResidualBlock(nn.Module):
    """x + conv(f(conv(f(x)))) with activation function f, 3x3, shape `[C, H, W]` unchanged."""

    def __init__(self, shape: Shape, settings: NetworkSettings) -> None:
        super().__init__()
        activation, channels = settings.activation, shape[0]
        self._outside: Callable[[Tensor], Tensor] = getattr(functional, activation)
        self._inside = functional.relu_ if activation == "relu" else self._outside  # in place saves memory traffic
        convolution = SpectralConv2d if settings.spectral_norm else nn.Conv2d
        self.first = convolution(channels, channels, 3, padding=1)
        self.second = convolution(channels, channels, 3, padding=1)
        self.first_norm, self.second_norm = (nn.LayerNorm(shape) if settings.layer_norm else None for _ in range(2))
        if self.second_norm is not None:
            nn.init.constant_(self.second_norm.weight, _RESIDUAL_GAIN)  # it undoes the small weights of `second`

    def forward(self, inputs: Tensor) -> Tensor:
        """`[N, channels, H, W]` in and out."""
        # Not in place here: the sum below needs the inputs as they came.
        hidden: Tensor = self.first(self._outside(inputs))
        hidden = hidden if self.first_norm is None else self.first_norm(hidden)
        residual: Tensor = self.second(self._inside(hidden))
        residual = residual if self.second_norm is None else self.second_norm(residual)
        return inputs + residual  # the identity lets gradients pass every block
