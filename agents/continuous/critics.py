"""Critics: several Q-functions of one shape, computed together as layers with stacked weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agents.continuous.actors import Actor
from agents.networks.base import NetworkConfig
from agents.networks.batch_renorm import BatchRenorm
from agents.networks.cores import NO_CORE
from agents.networks.torsos import ACTIVATIONS, SIMBA, SIMBA_WIDTH, parse_hidden_sizes, parse_simba_sizes
from agents.unused_settings import OF_DEVIATIONS, check_unused
from setting import Setting
from wrappers.spaces import Box

CRITICS, TARGETS = "critics", "target_critics"
"""Names of modules in a checkpoint."""
STEPS = "steps"
"""Name of the count of steps among an agent's numbers."""
CHARTS: dict[str, list[str]] = {
    "values, discounted": [r"losses/q$", r"losses/target$"],
    "losses": [r"losses/critic_loss$", r"losses/actor_loss$"],
    "gradient norm": [r"losses/gradient_norm$"],
}
BOUNDED = "actions that are real numbers between finite bounds"
SAME_SIZES = "same"
"""Value of `critic_hidden_sizes`: as `hidden_sizes`."""


def parse_critic_sizes(text: str) -> tuple[int, ...] | None:
    """The sizes that `512,512` lists; None for those of the actor. Raises ValueError."""
    try:
        return None if text == SAME_SIZES else parse_hidden_sizes(text)
    except ValueError as error:
        raise ValueError(f"critic_{error}") from None


CriticCount = Annotated[int, Setting("Critics (TQC 5, REDQ 10).", "a whole number of critics from 1 to 100", 1, 100)]
CriticSubset = Annotated[
    int,
    Setting(
        "Critics that are drawn for each step, whose smallest value is in the targets (REDQ 2); 0: all of them.",
        "a whole number of critics from 0 to 100",
        0,
        100,
    ),
]
CriticQuantiles = Annotated[
    int,
    Setting(
        "Quantiles of the return that each critic estimates (TQC 25); 0: its mean alone.",
        "a whole number of quantiles from 0 to 1000",
        0,
        1000,
    ),
]
DroppedQuantiles = Annotated[
    int,
    Setting(
        "Largest quantiles that targets leave out, for each critic, of the pool of all critics (TQC 2).",
        "a whole number of quantiles from 0 to 999",
        0,
        999,
    ),
]
CriticSizes = Annotated[
    str,
    Setting(
        f"Units of each hidden layer of the critics; {SAME_SIZES}: as --hidden_sizes.",
        f"{SAME_SIZES} or sizes such as 512,512",
        check=parse_critic_sizes,
    ),
]
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
    """`count` linear layers side by side, in one batched product: inputs `[count or 1, N, inputs]` to `[count, N, outputs]`."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # PyTorch's usual start, with which SAC and TD3 were published
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor, *affine: Tensor) -> Tensor:
        """affine: a factor and a shift `[count, 1, inputs]`, by which the inputs are first multiplied and moved, or nothing."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if affine:
            factor, shift = affine
            # (f x + s) W + b = x (f W) + (s W + b): two passes over the weights, instead of several over the rows.
            weight, bias = factor.transpose(1, 2) * weight, torch.baddbmm(bias, shift, weight)
        if weight.shape[-1] == 1:
            # A CPU takes four times as long for a batched product with a single column as for this sum.
            return (inputs * weight.transpose(1, 2)).sum(-1, keepdim=True) + bias  # [k, N, 1]
        # All layers may read the same rows: `expand` copies nothing.
        return torch.baddbmm(bias, inputs.expand(len(weight), -1, -1), weight)  # [k, N, in] @ [k, in, out] + [k, 1, out]


class StackedLayerNorm(nn.Module):
    """Layer normalisation of each layer's outputs, with a scale and an offset of its own: `[count, N, features]`."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count, 1, features))
        self.offset = nn.Parameter(torch.zeros(count, 1, features))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self.offset, functional.layer_norm(inputs, inputs.shape[-1:]), self.scale)


class StackedResidual(nn.Module):
    """A block of SimBa (arXiv:2410.09754) for each critic: h + W2 f(W1 LayerNorm(h)), `[count, N, size]` in and out."""

    def __init__(self, count: int, size: int, activation: str) -> None:
        super().__init__()
        self.norm, self.activation = StackedLayerNorm(count, size), ACTIVATIONS[activation]()
        self.first = StackedLinear(count, size, SIMBA_WIDTH * size)
        self.second = StackedLinear(count, SIMBA_WIDTH * size, size)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=math.sqrt(2.0 / layer.weight.shape[1]))  # He's start
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        residual: Tensor = self.second(self.activation(self.first(self.norm(inputs))))
        return inputs + residual


def simba_layers(count: int, inputs: int, outputs: int, sizes: Sequence[int], activation: str) -> nn.Sequential:
    """`count` SimBa networks side by side. They begin with orthogonal weights outside of the blocks."""
    first, last = StackedLinear(count, inputs, sizes[0]), StackedLinear(count, sizes[0], outputs)
    for layer in (first, last):
        for weight in layer.weight:
            nn.init.orthogonal_(weight)
        nn.init.zeros_(layer.bias)
    blocks = [StackedResidual(count, size, activation) for size in sizes]
    return nn.Sequential(first, *blocks, StackedLayerNorm(count, sizes[0]), last)


class Critics(nn.Module):
    """`count` Q-functions of an observation and an action, or of all values of a choice.

    Hidden layers are linear layer, dropout, layer normalisation, activation (DroQ, arXiv:2110.02034, figure 1). With batch
    renormalisation, that of the input comes first and that of each layer last (CrossQ, arXiv:1902.05605).

    Args:
        count: Q-functions.
        inputs: numbers that describe an observation, and an action if that is real numbers.
        outputs: values of each function: 1, one for each quantile, or one for each action.
        quantiles: whether the values are quantiles, which keep their axis if there is one.
        sizes: units of the hidden layers.
        activation: key of `ACTIVATIONS`.
        layer_norm: whether hidden layers are normalised.
        simba: whether the layers are those of SimBa, a block for each size; it takes none of the settings that follow.
        renorm_warm_up: of the batch renormalisation of input and hidden layers; None for none.
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
        quantiles: bool = False,
        simba: bool = False,
        layer_norm: bool = False,
        renorm_warm_up: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count = count
        self.quantiles = quantiles
        if simba:
            self.layers = simba_layers(count, inputs, outputs, sizes, activation)
            return
        renorm = partial(BatchRenorm, count=(count,), warm_up=renorm_warm_up or 0)
        layers: list[nn.Module] = [] if renorm_warm_up is None else [renorm(inputs)]
        for before, size in zip((inputs, *sizes), sizes, strict=False):
            layers.append(StackedLinear(count, before, size))
            layers += [nn.Dropout(dropout)] if dropout else []
            layers += [StackedLayerNorm(count, size)] if layer_norm else []
            layers.append(ACTIVATIONS[activation]())
            layers += [] if renorm_warm_up is None else [renorm(size)]
        self.layers = nn.Sequential(*layers, StackedLinear(count, sizes[-1], outputs))

    def forward(self, observations: Tensor, actions: Tensor | None = None) -> Tensor:
        """Values of described observations `[N, F]` and actions `[N, D]`, `[count, N]`; or of all actions, `[count, N, A]`.

        Critics with K quantiles give `[count, N, K]`.
        """
        inputs = observations if actions is None else torch.cat([observations, actions], -1)  # [N, F (+ D)]
        values, affine = inputs.unsqueeze(0), list[Tensor]()  # all critics read the same rows, [1, N, F (+ D)]
        for layer in self.layers:
            if isinstance(layer, BatchRenorm):
                values, *affine = layer.parts(values)  # the linear layer behind it does the rest
            else:
                values, affine = layer(values, *affine), []  # at last [k, N, outputs]
        return values if actions is None or self.quantiles else values.squeeze(-1)


def make_critics(network: Actor, config: Any) -> Critics:
    """Critics for an actor, on its device, as many and as wide as the agent's settings say."""
    settings, action = network.config.settings, network.config.action
    size, outputs = (len(action.low), config.critic_quantiles or 1) if isinstance(action, Box) else (0, network.parameter_count)
    critics = Critics(
        config.critics,
        network.encoded_size + size,
        outputs,
        parse_critic_sizes(config.critic_hidden_sizes) or parse_hidden_sizes(settings.hidden_sizes),
        settings.activation,
        quantiles=bool(config.critic_quantiles),
        simba=settings.network == SIMBA,
        layer_norm=config.critic_layer_norm,
        renorm_warm_up=getattr(config, "renorm_warm_up", None),
        dropout=config.critic_dropout,
    )
    return critics.to(network.policy_head.weight.device)


def check_critics(config: Any) -> None:
    """Raise ValueError in one line if the settings of the critics do not go together."""
    dropped, quantiles = config.dropped_quantiles, config.critic_quantiles
    if dropped and dropped >= quantiles:
        wanted = f"fewer than the {quantiles} of --critic_quantiles" if quantiles else "0 without --critic_quantiles"
        raise ValueError(f"dropped_quantiles: wanted {wanted}, got {dropped}")


def check_network(network: NetworkConfig, agent: str, config: Any) -> None:
    """Raise ValueError in one line if an actor with critics cannot use the settings of the network."""
    settings = network.settings
    if settings.network == SIMBA:
        parse_simba_sizes(settings.hidden_sizes if config.critic_hidden_sizes == SAME_SIZES else config.critic_hidden_sizes)
        for name in ("critic_layer_norm", "critic_dropout"):
            if got := getattr(config, name):
                raise ValueError(f"{name}: wanted {type(got)()} with --network={SIMBA}, whose blocks are normalised, got {got}")
    if settings.core != NO_CORE:
        wanted = f"{NO_CORE} with agent {agent}, whose critics have no memory; ppo, vtrace and r2d2, among others, have one"
        raise ValueError(f"core: wanted {wanted}, got {settings.core}")
    check_unused(network, agent, OF_DEVIATIONS)
    if settings.separate_value:
        raise ValueError(f"separate_value: wanted false with agent {agent}, whose critics are always separate, got true")


def check_bounded(network: NetworkConfig, agent: str, actions: str = BOUNDED) -> None:
    """Raise ValueError in one line unless actions are real numbers between finite bounds. actions: that the agent can take."""
    if not isinstance(network.action, Box) or not network.action.bounded.all():
        raise ValueError(f"env: wanted {actions} with agent {agent}, got {network.action.summary()}")
