"""Settings of the network, whatever agent it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agents.networks.cores import NO_CORE, core_names
from agents.networks.torsos import TORSOS
from setting import Setting


@dataclass(frozen=True)
class NetworkSettings:
    """The torso's architecture, how its input is scaled, and the memory behind it."""

    network: Annotated[
        str,
        Setting("Network: nature, impala_shallow, impala_deep, or mlp for small observations.", choices=TORSOS, stored=True),
    ] = "nature"
    calibrate_input: Annotated[
        bool, Setting("Centre and scale observations once, by what random play looks like before training.")
    ] = True
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

    def __post_init__(self) -> None:
        if self.burn_in and self.core == NO_CORE:
            raise ValueError(f"burn_in: wanted 0 without a core (--core=lstm or --core=gru), got {self.burn_in}")
