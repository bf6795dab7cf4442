"""Settings of the network, whatever agent it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agents.distributions import ACTION_DISTRIBUTIONS, LOG_STD_RANGE
from agents.networks.cores import NO_CORE, core_names
from agents.networks.initial_weights import INITIAL_WEIGHTS
from agents.networks.torsos import CONVOLUTIONS, HIDDEN_SIZES, TORSOS, parse_convolutions, parse_hidden_sizes
from agents.user_class import USER_CLASS
from setting import Setting, check_fields


def _networks() -> tuple[str, ...]:
    return tuple(sorted(TORSOS))


@dataclass(frozen=True)
class NetworkSettings:
    """The torso's architecture, how its input is scaled, the memory behind it, and the distribution of the actions."""

    network: Annotated[
        str,
        Setting(
            "Network: nature, impala_shallow, impala_deep or conv for images, mlp or simba (residual blocks) for vectors and "
            "small images, flat for no hidden layer at all, or a class of your own. auto: by the environment's observations.",
            "FILE.py:CLASS",
            choices=_networks,
            pattern=USER_CLASS,
            auto=True,
            stored=True,
        ),
    ]
    hidden_sizes: Annotated[
        str,
        Setting(
            "Units of each hidden layer of mlp, of each block of simba, of conv behind its convolutions, and of vectors beside "
            "images.",
            "sizes such as 64,64",
            check=parse_hidden_sizes,
            stored=True,
        ),
    ] = HIDDEN_SIZES
    activation: Annotated[
        Literal["relu", "tanh", "elu", "silu", "gelu"], Setting("Activation function of the hidden layers.", stored=True)
    ] = "relu"
    layer_norm: Annotated[
        bool,
        Setting(
            "Normalise the outputs of each hidden layer before its activation function (LayerNorm); a convolution's over the "
            "whole image.",
            stored=True,
        ),
    ] = False
    conv: Annotated[
        str,
        Setting(
            "Layers of --network=conv: channels, kernel size and stride of each convolution, in pixels.",
            f"layers such as {CONVOLUTIONS}",
            check=parse_convolutions,
            stored=True,
        ),
    ] = CONVOLUTIONS
    width: Annotated[
        int,
        Setting(
            "impala_deep: factor on the channels of its convolutions and the units of its hidden layer.",
            "a whole number from 1 to 64",
            1,
            64,
            stored=True,
        ),
    ] = 1
    adaptive_pool: Annotated[
        int,
        Setting(
            "impala_deep: height and width to which the last images are pooled (adaptive max-pooling); 0: none.",
            "a whole number of pixels from 0 to 64",
            0,
            64,
            stored=True,
        ),
    ] = 0
    spectral_norm: Annotated[
        bool,
        Setting("impala_deep: divide the weights of residual convolutions by their largest singular value.", stored=True),
    ] = False
    separate_value: Annotated[
        bool, Setting("Give the value a torso of its own instead of one that it shares with the policy.", stored=True)
    ] = False
    calibrate_input: Annotated[
        bool, Setting("Centre and scale observations once, by what random play looks like before training.")
    ] = True
    normalise_observations: Annotated[
        bool,
        Setting(
            "Centre and scale each feature of vector observations by its running mean and standard deviation, clipped at 10; "
            "images have --calibrate_input."
        ),
    ] = False
    core: Annotated[
        str,
        Setting(
            "Memory between the network's hidden layers and its outputs: none, lstm or gru.",
            choices=core_names,
            stored=True,
        ),
    ] = NO_CORE
    core_size: Annotated[
        int, Setting("Units of the core.", "a whole number of units from 1 to 65536", 1, 65536, stored=True)
    ] = 256
    core_memory: Annotated[
        int,
        Setting(
            "Steps that a new core remembers, such as the longest wait between a cue and its use (chrono initialisation of its "
            "gates); 0: the gates' usual biases.",
            "a whole number of steps from 0 to 1000000",
            0,
            1_000_000,
        ),
    ] = 0
    burn_in: Annotated[
        int,
        Setting(
            "Rows before each trajectory, repeated from the one before it, that only rebuild the core's state (R2D2: 40). They "
            "are not learned from and not counted.",
            "a whole number of rows from 0 to 10000",
            0,
            10_000,
            stored=True,
        ),
    ] = 0
    action_distribution: Annotated[
        str,
        Setting(
            "Distribution of the actions: categorical for choices; gaussian, squashed_gaussian or beta for real numbers, the "
            "last two only between finite bounds. auto takes the first that fits.",
            choices=ACTION_DISTRIBUTIONS,
            stored=True,
        ),
    ] = "auto"
    log_std: Annotated[
        Literal["shared", "network"],
        Setting("Standard deviations of gaussian actions: shared by all observations, or computed by the network."),
    ] = "shared"
    initial_weights: Annotated[
        str,
        Setting(
            "First weights of convolutions and linear layers. orthogonal: with biases of 0 and small outputs. uniform: those "
            "of PyTorch, weights and biases in [-1, 1] / sqrt(inputs).",
            choices=INITIAL_WEIGHTS,
        ),
    ] = "orthogonal"
    initial_log_std: Annotated[
        float,
        Setting("Logarithm of the standard deviations before the first update.", "a number from -5 to 2", *LOG_STD_RANGE),
    ] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.burn_in and self.core == NO_CORE:
            raise ValueError(f"burn_in: wanted 0 without a core (--core=lstm or --core=gru), got {self.burn_in}")

    @property
    def wants_random_play(self) -> bool:
        """Whether observations of random play set the scale of the input before training."""
        return self.calibrate_input or self.normalise_observations
