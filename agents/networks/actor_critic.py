"""Actor-critic networks: observations in, policy logits and values out.

Each network is a torso, whose output is the last hidden layer ("features"), and two linear heads on it. Stacked frames
become channels; uint8 observations are scaled to 0 .. 1 here and nowhere else. Sources: `nature` is the network of
Mnih et al. 2015 (doi:10.1038/nature14236); `impala_shallow` that of Mnih et al. 2016 (arXiv:1602.01783), the shallow
model of IMPALA (arXiv:1802.01561) for Atari; `impala_deep` the residual network of IMPALA's figure 3, without its LSTM.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.compute import PRECISIONS

_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
_VALUE_GAIN = 1.0
_RESIDUAL_GAIN = 0.1
_UINT8_SCALE = 1.0 / 255.0
_CALIBRATED_AT_ONCE = 50  # observations; a float32 copy of all would be the largest memory of a whole run


@dataclass(frozen=True)
class NetworkConfig:
    """All that is needed to build the same network again, in this process or another.

    name: a key of `NETWORKS`.
    observation_shape: `[S, H, W]`, `[S, H, W, C]` or, for `mlp`, also `[S, F]`; the environment's `observation_shape`.
    action_count: number of discrete actions A.
    precision: what the torso computes in, a key of `PRECISIONS`. No part of the weights, which are float32 always.
    """

    name: str
    observation_shape: tuple[int, ...]
    action_count: int
    precision: str = "float32"

    def __post_init__(self) -> None:
        if not self.observation_shape or min(self.observation_shape) < 1:
            raise ValueError(f"observation_shape: wanted sizes of 1 or more, got {self.observation_shape}")
        if self.action_count < 1:
            raise ValueError(f"action_count: wanted 1 or more, got {self.action_count}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: wanted {' or '.join(PRECISIONS)}, got {self.precision!r}")


class PolicyOutput(NamedTuple):
    """logits: float32 `[N, A]`; values: float32 `[N]`."""

    logits: Tensor
    values: Tensor


class ActorCritic(nn.Module):
    """A torso that turns observations into features, and the two heads on it; subclasses supply the torso.

    minimum_frame_size: the smallest H and W that the torso can convolve; None where any observation will do.
    """

    minimum_frame_size: ClassVar[int | None] = None
    input_mean: Tensor
    input_scale: Tensor

    def __init__(self, config: NetworkConfig, torso: nn.Module, feature_count: int) -> None:
        super().__init__()
        self.config = config
        self.feature_count = feature_count
        self.torso = torso
        self.policy_head = nn.Linear(feature_count, config.action_count)
        self.value_head = nn.Linear(feature_count, 1)
        self.register_buffer("input_mean", _channels_last_zeros(_input_shape(config.observation_shape)))
        self.register_buffer("input_scale", torch.ones(()))

    def forward(self, observations: Tensor) -> PolicyOutput:
        """Policy and value of N observations `[N, *observation_shape]`, uint8 or floating point."""
        return self.heads(self.features(observations))

    def features(self, observations: Tensor) -> Tensor:
        """The last hidden layer `[N, feature_count]` of N observations `[N, *observation_shape]`."""
        if observations.shape[1:] != self.config.observation_shape:
            wanted = f"[N, {', '.join(map(str, self.config.observation_shape))}]"
            raise ValueError(f"observations: wanted {wanted}, got {list(observations.shape)}")
        dtype = PRECISIONS[self.config.precision]
        inputs = network_input(observations)
        scale = self.input_scale * _unit(observations)
        offset = -self.input_mean * self.input_scale
        inputs = torch.addcmul(offset.to(dtype), inputs.to(dtype), scale.to(dtype))
        with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
            features: Tensor = self.torso(inputs)
        return features.float()

    @torch.no_grad()
    def calibrate(self, observations: Tensor) -> None:
        """Centre and scale the input by what N observations `[N, *observation_shape]` of an untrained policy look like.

        Each pixel's mean is taken off and all pixels are divided by one number, their common standard deviation. Most of an
        Atari frame never changes: without this the features of any two states differ by a few per cent only, and gradient
        descent first learns what all states have in common (compare Burda et al. 2018, arXiv:1810.12894, section 2.4, which
        fixes the statistics from random play too, for every pixel apart).
        """
        unit, exact = _unit(observations), torch.float64
        parts = [network_input(part) for part in observations.split(_CALIBRATED_AT_ONCE)]
        mean = torch.stack([part.sum(0, dtype=exact) for part in parts]).sum(0) / len(observations)
        self.input_mean.copy_(unit * mean)
        squares = torch.stack([(unit * part.float() - self.input_mean).square().sum(dtype=exact) for part in parts])
        deviation = math.sqrt(float(squares.sum()) / (len(observations) * mean.numel()))
        self.input_scale.fill_(1.0 / deviation if deviation > 0 else 1.0)

    def heads(self, features: Tensor) -> PolicyOutput:
        """Logits and values of float32 features `[N, feature_count]`."""
        return PolicyOutput(logits=self.policy_head(features), values=self.value_head(features).squeeze(-1))

    def only_act(self) -> ActorCritic:
        """Keep the torso's weights in the precision it computes in, which saves casting them at every call; returns self."""
        self.torso.to(PRECISIONS[self.config.precision])
        return self.eval().requires_grad_(False)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal weights and zero biases, drawn from `generator` or, without one, from torch's global generator.

        PyTorch's default initialisation was seen to leave the value equal for all states after millions of steps.
        """
        head_gains: dict[nn.Module, float] = {self.policy_head: _POLICY_GAIN, self.value_head: _VALUE_GAIN}
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, head_gains.get(module, self.hidden_gain(module)), generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def hidden_gain(self, layer: nn.Module) -> float:
        """Gain of a hidden layer's initial weights."""
        return _HIDDEN_GAIN


def network_input(observations: Tensor) -> Tensor:
    """N observations as a torso reads them, values and dtype unchanged.

    Colour stacks `[N, S, H, W, C]` become `[N, C*S, H, W]`, channel c*S + s being colour c of frame s; all else keeps
    its shape.

    Images come out channels-last in memory, with which convolutions on a CPU train about 1.5 times faster. The layout
    changes while the data are still bytes, a quarter of the traffic, and is free where they arrive with the stack
    innermost, as `stack_frames` builds it.
    """
    if observations.dtype != torch.uint8 and not observations.dtype.is_floating_point:
        raise ValueError(f"observations: wanted uint8 or floating point, got {observations.dtype}")
    if observations.dim() == 5:
        observations = observations.permute(0, 2, 3, 4, 1).flatten(3).permute(0, 3, 1, 2)
    if observations.dim() == 4:
        observations = observations.contiguous(memory_format=torch.channels_last)
    return observations


def _unit(observations: Tensor) -> float:
    """What one step of the observations' values is worth: bytes run from 0 to 1."""
    return _UINT8_SCALE if observations.dtype == torch.uint8 else 1.0


def _input_shape(observation_shape: tuple[int, ...]) -> tuple[int, ...]:
    """What `network_input` makes of one observation's shape."""
    if len(observation_shape) == 4:
        stack, height, width, colours = observation_shape
        return (stack * colours, height, width)
    return observation_shape


def _channels_last_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros in the memory layout of one row of a torso's input."""
    return torch.zeros(shape[1:] + shape[:1]).movedim(-1, 0)


class Nature(ActorCritic):
    """Three convolutions (8x8x32 stride 4, 4x4x64 stride 2, 3x3x64 stride 1) and 512 hidden units."""

    minimum_frame_size = 36

    def __init__(self, config: NetworkConfig) -> None:
        channels, height, width = _image_shape(config, self.minimum_frame_size)
        convolutions = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
        super().__init__(config, _convolutional_torso(channels, height, width, convolutions, 512), 512)


class ImpalaShallow(ActorCritic):
    """Two convolutions (8x8x16 stride 4, 4x4x32 stride 2) and 256 hidden units."""

    minimum_frame_size = 20

    def __init__(self, config: NetworkConfig) -> None:
        channels, height, width = _image_shape(config, self.minimum_frame_size)
        convolutions = [(16, 8, 4), (32, 4, 2)]
        super().__init__(config, _convolutional_torso(channels, height, width, convolutions, 256), 256)


class ImpalaDeep(ActorCritic):
    """Three sections of 16, 32 and 32 channels (convolution, max-pooling, two residual blocks) and 256 hidden units."""

    minimum_frame_size = 1

    def __init__(self, config: NetworkConfig) -> None:
        channels, height, width = _image_shape(config, self.minimum_frame_size)
        layers: list[nn.Module] = []
        for section_channels in (16, 32, 32):
            layers += [nn.Conv2d(channels, section_channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [_ResidualBlock(section_channels), _ResidualBlock(section_channels)]
            channels, height, width = section_channels, (height + 1) // 2, (width + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU()]
        super().__init__(config, nn.Sequential(*layers), 256)

    def hidden_gain(self, layer: nn.Module) -> float:
        """Residual branches start small and no rectifier follows a section's convolution: else the features start huge."""
        if any(isinstance(block, _ResidualBlock) and layer is block.second for block in self.modules()):
            return _RESIDUAL_GAIN
        return 1.0 if isinstance(layer, nn.Conv2d) else _HIDDEN_GAIN


class Mlp(ActorCritic):
    """Two layers of 256 hidden units on the flattened observation, for vectors and frames of a few pixels."""

    def __init__(self, config: NetworkConfig) -> None:
        inputs = math.prod(config.observation_shape)
        layers = [nn.Flatten(), nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        super().__init__(config, nn.Sequential(*layers), 256)


NETWORKS: dict[str, Callable[[NetworkConfig], ActorCritic]] = {
    "nature": Nature,
    "impala_shallow": ImpalaShallow,
    "impala_deep": ImpalaDeep,
    "mlp": Mlp,
}


def make_network(
    name: str,
    observation_shape: tuple[int, ...],
    action_count: int,
    *,
    precision: str = "float32",
    generator: torch.Generator | None = None,
) -> ActorCritic:
    """A new, initialised network on the CPU; `network.config` describes it.

    Equal generators give equal weights; without one the weights come from torch's global generator.
    """
    if name not in NETWORKS:
        raise ValueError(f"network: wanted one of {sorted(NETWORKS)}, got {name!r}")
    config = NetworkConfig(name, tuple(observation_shape), action_count, precision)
    network = NETWORKS[name](config)
    network.initialise(generator)
    return network


def on_device(network: ActorCritic, device: torch.device) -> ActorCritic:
    """Move a network; on a GPU its kernels lie channels-last, as its input does, or each call would turn them around."""
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which PyTorch's stubs forget
    return network.to(device)


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


def _image_shape(config: NetworkConfig, minimum: int) -> tuple[int, int, int]:
    """Channels, height and width of the torso's input; refuses what the network cannot convolve."""
    shape = config.observation_shape
    if len(shape) not in (3, 4):
        raise ValueError(f"network {config.name}: wanted observations [S, H, W] or [S, H, W, C], got {list(shape)}")
    stack, height, width, *colours = shape
    if min(height, width) < minimum:
        wanted = f"frames of at least {minimum}x{minimum} (mlp takes any size)"
        raise ValueError(f"network {config.name}: wanted {wanted}, got {height}x{width}")
    return stack * math.prod(colours), height, width


def _convolutional_torso(
    channels: int, height: int, width: int, convolutions: list[tuple[int, int, int]], hidden: int
) -> nn.Sequential:
    """Convolutions (channels, kernel size, stride) without padding and one hidden layer, each with a ReLU after it."""
    layers: list[nn.Module] = []
    for out_channels, kernel, stride in convolutions:
        layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
        channels, height, width = out_channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]
    return nn.Sequential(*layers)
