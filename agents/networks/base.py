"""The base of every network: a torso turns observations into features, and the heads that the agent names use them.

The features are the last hidden layer. Stacked frames become channels. Observations are scaled, centred and cast here and
nowhere else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from agents.acting import Acting
from agents.compute import PRECISIONS
from agents.distributions import Distribution
from agents.networks.settings import NetworkSettings
from agents.networks.torsos import make_torso
from wrappers.spaces import ActionSpace, Leaf

_BYTE_SCALE = 1.0 / 255.0
_CALIBRATED_AT_ONCE = 50  # observations; a float32 copy of all would be the largest memory of a whole run


@dataclass(frozen=True)
class NetworkConfig:
    """All that is needed to build the same network again, in this process or another. It is sent to processes as it is.

    Args:
        settings: the torso and its sizes.
        observation_shape: `[S, H, W]`, `[S, H, W, C]` or, for `mlp`, also `[S, F]`; the environment's `observation_shape`.
        action: the environment's actions.
        network_class: the class that adds the heads. It must be found by its name in other processes.
        precision: what the torso computes in, a key of `PRECISIONS`. Weights are float32 in any case.
        leaves: the parts of a frame that has several, see `wrappers.spec.EnvSpec`.
    """

    settings: NetworkSettings
    observation_shape: tuple[int, ...]
    action: ActionSpace
    network_class: type[FeatureNetwork]
    precision: str = "float32"
    leaves: tuple[Leaf, ...] = ()

    def __post_init__(self) -> None:
        if not self.observation_shape or min(self.observation_shape) < 1:
            raise ValueError(f"observation_shape: wanted sizes of 1 or more, got {self.observation_shape}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: wanted {' or '.join(PRECISIONS)}, got {self.precision!r}")


class Thought(NamedTuple):
    """The output of a network for N observations, as tensors only.

    output: what the heads return, a NamedTuple of tensors `[N, ...]`. features: float32 `[N, F]`.
    """

    output: Any
    features: Tensor


class Chosen(NamedTuple):
    """Actions, and the fields that are stored with them.

    actions: `[N]`; fields: each `[N, *shape]`, as `acting` declares them.
    """

    actions: Tensor
    fields: dict[str, Tensor]


class FeatureNetwork(nn.Module, ABC):
    """A torso and, in subclasses, heads. A policy calls `think`, then `choose`; learning calls the network itself."""

    input_mean: Tensor
    input_scale: Tensor
    distribution: Distribution | None = None
    """Distribution of the actions, if the network has a policy."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.torso = make_torso(config.settings.network, config.observation_shape)
        self.feature_count = self.torso.feature_count
        self.make_heads()
        self.register_buffer("input_mean", _channels_last_zeros(_input_shape(config.observation_shape)))
        self.register_buffer("input_scale", torch.ones(()))

    @abstractmethod
    def make_heads(self) -> None:
        """Make the layers that read `feature_count` features."""

    @abstractmethod
    def heads(self, features: Tensor) -> Any:
        """Outputs for float32 features `[N, F]`: a NamedTuple of tensors `[N, ...]`."""

    @abstractmethod
    def head_gain(self, layer: nn.Module) -> float | None:
        """Gain of the initial weights of one of the heads, None for any other layer."""

    @classmethod
    @abstractmethod
    def acting(cls, config: NetworkConfig) -> Acting:
        """The fields that `choose` returns with the actions."""

    @abstractmethod
    def choose(self, thought: Thought, generator: torch.Generator | None, *, greedy: bool = False) -> Chosen:
        """Actions for N observations. greedy: take the best action instead of exploring."""

    def forward(self, observations: Tensor) -> Any:
        """Outputs for N observations `[N, *observation_shape]`, uint8 or floating point."""
        return self.heads(self.features(observations))

    def think(self, observations: Tensor) -> Thought:
        """The same with the features, for acting."""
        features = self.features(observations)
        return Thought(self.heads(features), features)

    def features(self, observations: Tensor) -> Tensor:
        """The last hidden layer, float32 `[N, F]`, of N observations `[N, *observation_shape]`."""
        if observations.shape[1:] != self.config.observation_shape:
            wanted = f"[N, {', '.join(map(str, self.config.observation_shape))}]"
            raise ValueError(f"observations: wanted {wanted}, got {list(observations.shape)}")
        dtype = PRECISIONS[self.config.precision]
        inputs = network_input(observations)
        scale = self.input_scale * _scale_of(observations)
        offset = -self.input_mean * self.input_scale
        inputs = torch.addcmul(offset.to(dtype), inputs.to(dtype), scale.to(dtype))
        with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
            features: Tensor = self.torso(inputs)
        return features.float()

    @torch.no_grad()
    def calibrate(self, observations: Tensor) -> None:
        """Centre and scale the input by the statistics of N observations `[N, *observation_shape]` of random play.

        Each pixel's mean is subtracted, and all pixels are divided by their common standard deviation. Most of an Atari frame
        never changes. Without calibration the features of any two states differ by a few per cent only, and gradient descent
        first learns what all states have in common. Burda et al. 2018 (arXiv:1810.12894, section 2.4) also fix the statistics
        from random play, but for every pixel apart.
        """
        scale, exact = _scale_of(observations), torch.float64
        parts = [network_input(part) for part in observations.split(_CALIBRATED_AT_ONCE)]
        mean = torch.stack([part.sum(0, dtype=exact) for part in parts]).sum(0) / len(observations)
        self.input_mean.copy_(scale * mean)
        squares = torch.stack([(scale * part.float() - self.input_mean).square().sum(dtype=exact) for part in parts])
        deviation = math.sqrt(float(squares.sum()) / (len(observations) * mean.numel()))
        self.input_scale.fill_(1.0 / deviation if deviation > 0 else 1.0)

    def only_act(self) -> Self:
        """Keep the torso's weights in the precision it computes in, so that no call casts them. Returns self."""
        self.torso.to(PRECISIONS[self.config.precision])
        return self.eval().requires_grad_(False)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights from `generator` (None: PyTorch's global one) and set biases to zero.

        PyTorch's default initialisation was seen to leave the value equal for all states after millions of steps.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                gain = self.head_gain(module)
                gain = self.torso.gain(module) if gain is None else gain
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def make_network(config: NetworkConfig, generator: torch.Generator | None = None) -> Any:
    """A new, initialised network on the CPU, of the config's `network_class`.

    Equal generators give equal weights. Without one the weights come from PyTorch's global generator.
    """
    network = config.network_class(config)
    network.initialise(generator)
    return network


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


def on_device(network: Any, device: torch.device) -> Any:
    """Move a network. On a GPU its kernels lie channels-last, as its input does; otherwise each call would transpose them."""
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)
    return network.to(device)


def _scale_of(observations: Tensor) -> float:
    """Factor that scales raw observations: 1/255 for uint8, otherwise 1."""
    return _BYTE_SCALE if observations.dtype == torch.uint8 else 1.0


def _input_shape(observation_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one observation after `network_input`."""
    if len(observation_shape) == 4:
        stack, height, width, colours = observation_shape
        return (stack * colours, height, width)
    return observation_shape


def _channels_last_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros in the memory layout of one row of a torso's input."""
    return torch.zeros(shape[1:] + shape[:1]).movedim(-1, 0)
