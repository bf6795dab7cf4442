"""A torso of the user's own: `--network=my_net.py:Net`.

The class is a `torch.nn.Module`. It is called with the observation shape `[S, ...]`. It maps prepared observations, float
`[N, ...]`, to features `[N, F]`. Prepared images are `[N, C, H, W]`: their stack and colours are channels. Every process
imports the class from its file.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from agents.compute import PRECISIONS
from agents.user_class import user_class
from wrappers.errors import details_of

Shape = tuple[int, ...]

_BATCH = 3
_TOLERANCE = 1e-4


class UserTorso(nn.Module):
    """The user's module, as the network uses a torso. Its initial weights stay as the class makes them."""

    reads: tuple[str, ...] = ()

    def __init__(self, network: str, observation_shape: Shape, input_shape: Shape, precision: str = "float32") -> None:
        super().__init__()
        self.feature_count = checked_feature_count(network, observation_shape, input_shape, precision)
        self.module = _made(network, observation_shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Prepared observations `[N, ...]` to features `[N, F]`."""
        features: Tensor = self.module(inputs)
        return features

    def gain(self, layer: nn.Module) -> None:
        """No gain: the weights are not drawn anew."""
        return


@cache
def checked_feature_count(network: str, observation_shape: Shape, input_shape: Shape, precision: str) -> int:
    """The number of features F of the user's class. Raises ValueError with one line if it breaks the contract.

    Args:
        network: `FILE.py:CLASS`.
        observation_shape: `[S, ...]`, the argument of the class.
        input_shape: of one prepared observation.
        precision: a key of `PRECISIONS`.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        torch.manual_seed(0)
        module = _made(network, observation_shape)
        inputs = torch.randn(_BATCH, *input_shape)
        features = _called(network, module, inputs)
        _check_features(network, features, inputs)
        alone = _called(network, module, inputs[:1])
        if alone.shape != features[:1].shape or not torch.allclose(alone, features[:1], rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ValueError(f"network {network}: wanted the same features for an observation alone as in a batch, got others")
        _check_gradients(network, module, features)
        if precision != "float32":
            _check_precision(network, module, inputs, precision)
    return features.shape[1]


def _made(network: str, observation_shape: Shape) -> nn.Module:
    try:
        return user_class("network", network, nn.Module)(observation_shape)
    except ValueError as error:
        if str(error).startswith("network "):
            raise
        raise ValueError(f"network {network}: wanted a class that takes {observation_shape}, got {_line(error)}") from error
    except Exception as error:  # the class is the user's
        raise ValueError(f"network {network}: wanted a class that takes {observation_shape}, got {_line(error)}") from error


def _called(network: str, module: nn.Module, inputs: Tensor) -> Tensor:
    try:
        features = module(inputs)
    except Exception as error:  # the class is the user's
        raise ValueError(f"network {network}: wanted features of inputs {list(inputs.shape)}, got {_line(error)}") from error
    if not isinstance(features, Tensor):
        raise ValueError(f"network {network}: wanted a tensor of features, got a {type(features).__name__}")
    return features


def _check_features(network: str, features: Tensor, inputs: Tensor) -> None:
    if features.dim() != 2 or len(features) != len(inputs) or not features.numel():
        raise ValueError(f"network {network}: wanted features [{len(inputs)}, F], got {list(features.shape)}")
    if features.dtype != torch.float32:
        raise ValueError(f"network {network}: wanted float32 features, got {features.dtype}")
    if not features.isfinite().all():
        raise ValueError(f"network {network}: wanted finite features of inputs drawn from a normal distribution, got others")


def _check_gradients(network: str, module: nn.Module, features: Tensor) -> None:
    """Every weight must be float32 and be reached by the gradient: an update computes all gradients at once."""
    for name, tensor in module.state_dict().items():
        if tensor.dtype != torch.float32:
            raise ValueError(f"network {network}: wanted float32 parameters and buffers, got {name} as {tensor.dtype}")
    parameters = dict(module.named_parameters())
    if not parameters or not features.requires_grad:
        raise ValueError(f"network {network}: wanted features that depend on trainable parameters, got none")
    gradients = torch.autograd.grad(features.sum(), list(parameters.values()), allow_unused=True)
    if unused := [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]:
        raise ValueError(f"network {network}: wanted a gradient for every parameter, got none for {unused[0]}")


def _check_precision(network: str, module: nn.Module, inputs: Tensor, precision: str) -> None:
    """The class must compute with autocast, as in learning, and with cast weights, as in acting."""
    dtype = PRECISIONS[precision]
    try:
        with torch.autocast("cpu", dtype):
            module(inputs.to(dtype)).float().sum().backward()
            module.to(dtype)(inputs.to(dtype))
    except Exception as error:  # the class is the user's
        raise ValueError(
            f"network {network}: wanted a class that computes in {precision}, or --precision=float32, got {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{details_of(error)}"
