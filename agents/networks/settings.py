"""Settings of the network, whatever agent it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agents.distributions import ACTION_DISTRIBUTIONS, LOG_STD_RANGE
from agents.networks.torsos import TORSOS
from setting import Setting


@dataclass(frozen=True)
class NetworkSettings:
    """The torso's architecture, how its input is scaled, and the distribution of the actions."""

    network: Annotated[
        str,
        Setting("Network: nature, impala_shallow, impala_deep, or mlp for small observations.", choices=TORSOS, stored=True),
    ] = "nature"
    calibrate_input: Annotated[
        bool, Setting("Centre and scale observations once, by what random play looks like before training.")
    ] = True
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
    initial_log_std: Annotated[
        float,
        Setting("Logarithm of the standard deviations before the first update.", "a number from -5 to 2", *LOG_STD_RANGE),
    ] = 0.0
