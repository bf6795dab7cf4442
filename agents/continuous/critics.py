"""Critics: several Q-functions of one shape, computed together as layers with stacked weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.continuous.actors import Actor
from agents.networks.base import NetworkConfig
from agents.networks.cores import NO_CORE
from agents.networks.torsos import ACTIVATIONS, parse_hidden_sizes
from agents.unused_settings import OF_DEVIATIONS, check_unused
from setting import Setting
from wrappers.spaces import Box

CRITICS, TARGETS = "critics", "target_critics"
"""Names of modules in a checkpoint."""
CHARTS: dict[str, list[str]] = {
    "values, discounted": [r"losses/q$", r"losses/target$"],
    "losses": [r"losses/critic_loss$", r"losses/actor_loss$"],
    "gradient norm": [r"losses/gradient_norm$"],
}
BOUNDED = "actions that are real numbers between finite bounds"
LayerNorm = Annotated[bool, Setting("Normalise the hidden layers of the critics.")]
Dropout = Annotated[
    float,
    Setting(
        "Probability with which a hidden unit of a critic is left out (DroQ: 0.01, with --critic_layer_norm and 20 "
        "updates a step).",
        "a probability in [0, 0.9]",
        0,
        0.9,
    ),
]


class StackedLinear(nn.Module):
    """`count` linear layers side by side, in one batched product: inputs `[count, N, inputs]` to `[count, N, outputs]`."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # PyTorch's usual start, with which SAC and TD3 were published
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1:
            # A CPU takes four times as long for a batched product with a single column as for this sum.
            return (inputs * self.weight.transpose(1, 2)).sum(-1, keepdim=True) + self.bias  # [k, N, 1]
        return torch.baddbmm(self.bias, inputs, self.weight)  # [k, N, in] @ [k, in, out] + [k, 1, out]


class StackedLayerNorm(nn.Module):
    """Layer normalisation of each layer's outputs, with a scale and an offset of its own: `[count, N, features]`."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count, 1, features))
        self.offset = nn.Parameter(torch.zeros(count, 1, features))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self.offset, functional.layer_norm(inputs, inputs.shape[-1:]), self.scale)


class Critics(nn.Module):
    """`count` Q-functions of an observation and an action, or of all values of a choice.

    Hidden layers are linear layer, dropout, layer normalisation, activation (DroQ, arXiv:2110.02034, figure 1).

    Args:
        count: Q-functions.
        inputs: numbers that describe an observation, and an action if that is real numbers.
        outputs: values of each function: 1, or one for each action.
        sizes: units of the hidden layers.
        activation: key of `ACTIVATIONS`.
        layer_norm: whether hidden layers are normalised.
        dropout: probability with which a hidden unit is left out.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        outputs: int,
        sizes: Sequence[int],
        activation: str,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count = count
        layers: list[nn.Module] = []
        for before, size in zip((inputs, *sizes), sizes, strict=False):
            layers.append(StackedLinear(count, before, size))
            layers += [nn.Dropout(dropout)] if dropout else []
            layers += [StackedLayerNorm(count, size)] if layer_norm else []
            layers.append(ACTIVATIONS[activation]())
        self.layers = nn.Sequential(*layers, StackedLinear(count, sizes[-1], outputs))

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Values of described observations `[N, F]` and actions `[N, D]`, `[count, N]`; or of all actions, `[count, N, A]`."""
        inputs = observations if actions is None else torch.cat([observations, actions], -1)  # [N, F (+ D)]
        # All critics read the same rows, so `expand` copies nothing.
        values: Tensor = self.layers(inputs.expand(self.count, *inputs.shape))  # [k, N, outputs]
        return values if actions is None else values.squeeze(-1)


def make_critics(count: int, network: Actor, config: Any) -> Critics:
    """Critics for an actor, on its device. Their hidden layers are those of `--hidden_sizes` and `--activation`."""
    settings, action = network.config.settings, network.config.action
    size, outputs = (len(action.low), 1) if isinstance(action, Box) else (0, network.parameter_count)
    critics = Critics(
        count,
        network.encoded_size + size,
        outputs,
        parse_hidden_sizes(settings.hidden_sizes),
        settings.activation,
        layer_norm=config.critic_layer_norm,
        dropout=config.critic_dropout,
    )
    return critics.to(network.policy_head.weight.device)


def check_network(network: NetworkConfig, agent: str) -> None:
    """Raise ValueError in one line if an actor with critics cannot use the settings of the network."""
    settings = network.settings
    if settings.core != NO_CORE:
        wanted = f"{NO_CORE} with agent {agent}, whose critics have no memory; ppo, vtrace and r2d2, among others, have one"
        raise ValueError(f"core: wanted {wanted}, got {settings.core}")
    check_unused(network, agent, OF_DEVIATIONS)
    if settings.separate_value:
        raise ValueError(f"separate_value: wanted false with agent {agent}, whose critics are always separate, got true")


def check_bounded(
    network: NetworkConfig, agent: str, actions: str = "actions that are real numbers between finite bounds"
) -> None:
    """Raise ValueError in one line unless actions are real numbers between finite bounds. actions: that the agent can take."""
    if not isinstance(network.action, Box) or not network.action.bounded.all():
        raise ValueError(f"env: wanted {actions} with agent {agent}, got {network.action.summary()}")
