"""Settings of the network, whatever agent it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from agents.networks.torsos import TORSOS
from setting import Setting


@dataclass(frozen=True)
class NetworkSettings:
    """The torso's architecture, and how its input is scaled."""

    network: Annotated[
        str,
        Setting("Network: nature, impala_shallow, impala_deep, or mlp for small observations.", choices=TORSOS, stored=True),
    ] = "nature"
    calibrate_input: Annotated[
        bool, Setting("Centre and scale observations once, by what random play looks like before training.")
    ] = True
