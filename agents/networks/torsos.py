"""Torsos: observations in, features out. One class for each value of `--network`.

Sources: `nature` is the network of Mnih et al. 2015 (doi:10.1038/nature14236). `impala_shallow` is that of Mnih et al. 2016
(arXiv:1602.01783), which IMPALA (arXiv:1802.01561) uses as its shallow model for Atari. `impala_deep` is the residual network
of IMPALA's figure 3, without its LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]

_HIDDEN_GAIN = math.sqrt(2.0)
_RESIDUAL_GAIN = 0.1


class Torso(nn.Sequential):
    """Layers that turn prepared observations into features `[N, feature_count]`.

    minimum_frame_size: the smallest height and width that the torso can convolve; None for a torso that takes any observation.
    """

    minimum_frame_size: int | None = None
    feature_count = 256

    def gain(self, layer: nn.Module) -> float:
        """Gain of a layer's initial orthogonal weights."""
        return _HIDDEN_GAIN


class Nature(Torso):
    """Three convolutions (8x8x32 stride 4, 4x4x64 stride 2, 3x3x64 stride 1) and 512 hidden units."""

    minimum_frame_size = 36
    feature_count = 512

    def __init__(self, observation_shape: Shape) -> None:
        super().__init__(
            *_convolutions(
                _image_shape(observation_shape, self.minimum_frame_size),
                [(32, 8, 4), (64, 4, 2), (64, 3, 1)],
                self.feature_count,
            )
        )


class ImpalaShallow(Torso):
    """Two convolutions (8x8x16 stride 4, 4x4x32 stride 2) and 256 hidden units."""

    minimum_frame_size = 20

    def __init__(self, observation_shape: Shape) -> None:
        super().__init__(
            *_convolutions(
                _image_shape(observation_shape, self.minimum_frame_size), [(16, 8, 4), (32, 4, 2)], self.feature_count
            )
        )


class ImpalaDeep(Torso):
    """Three sections of 16, 32 and 32 channels (convolution, max-pooling, two residual blocks) and 256 hidden units."""

    minimum_frame_size = 1

    def __init__(self, observation_shape: Shape) -> None:
        channels, height, width = _image_shape(observation_shape, self.minimum_frame_size)
        layers: list[nn.Module] = []
        for section_channels in (16, 32, 32):
            layers += [nn.Conv2d(channels, section_channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [_ResidualBlock(section_channels), _ResidualBlock(section_channels)]
            channels, height, width = section_channels, (height + 1) // 2, (width + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width, self.feature_count), nn.ReLU()]
        super().__init__(*layers)

    def gain(self, layer: nn.Module) -> float:
        """Residual branches start small, and no rectifier follows a section's convolution. Otherwise features start huge."""
        if any(isinstance(block, _ResidualBlock) and layer is block.second for block in self.modules()):
            return _RESIDUAL_GAIN
        return 1.0 if isinstance(layer, nn.Conv2d) else _HIDDEN_GAIN


class Mlp(Torso):
    """Two layers of 256 hidden units on the flattened observation, for vectors and frames of a few pixels."""

    def __init__(self, observation_shape: Shape) -> None:
        hidden, inputs = self.feature_count, math.prod(observation_shape)
        super().__init__(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


TORSOS: dict[str, Callable[[Shape], Torso]] = {
    "nature": Nature,
    "impala_shallow": ImpalaShallow,
    "impala_deep": ImpalaDeep,
    "mlp": Mlp,
}
"""Name on the command line (`--network`) -> class, which is called with the observation shape `[S, ...]`."""


def make_torso(name: str, observation_shape: Shape) -> Torso:
    """The torso of that name for observations `[S, ...]`. Raises ValueError if it cannot read them."""
    if name not in TORSOS:
        raise ValueError(f"network: wanted one of {sorted(TORSOS)}, got {name!r}")
    try:
        return TORSOS[name](observation_shape)
    except ValueError as error:
        raise ValueError(f"network {name}: {error}") from None


def _image_shape(observation_shape: Shape, minimum: int | None) -> tuple[int, int, int]:
    """Channels, height and width of the torso's input: the stack and the colours become channels. Raises ValueError."""
    if len(observation_shape) not in (3, 4):
        raise ValueError(f"wanted observations [S, H, W] or [S, H, W, C], got {list(observation_shape)}")
    stack, height, width, *colours = observation_shape
    if minimum is not None and min(height, width) < minimum:
        raise ValueError(f"wanted frames of at least {minimum}x{minimum} (mlp takes any size), got {height}x{width}")
    return stack * math.prod(colours), height, width


def _convolutions(image: tuple[int, int, int], convolutions: list[tuple[int, int, int]], hidden: int) -> list[nn.Module]:
    """Convolutions (channels, kernel size, stride) without padding and one hidden layer, each followed by a ReLU.

    image: channels, height and width.
    """
    channels, height, width = image
    layers: list[nn.Module] = []
    for out_channels, kernel, stride in convolutions:
        layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
        channels, height, width = out_channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return [*layers, nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]


class _ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3, channels unchanged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        """`[N, channels, H, W]` in and out."""
        hidden: Tensor = self.first(functional.relu(inputs))
        residual: Tensor = self.second(functional.relu_(hidden))
        return inputs + residual
