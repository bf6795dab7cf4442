"""Checks of the network's settings that an agent does not use: a value for one of them is refused, or it would do nothing.

An agent names such settings in `Agent.unused`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.networks.base import NetworkConfig
from agents.networks.settings import NetworkSettings
from setting import settings_of

OF_CORES = ("core", "core_size", "core_memory")
OF_DEVIATIONS = ("log_std", "initial_log_std")
OF_POLICIES = (*OF_DEVIATIONS, "action_distribution", "separate_value")


def check_unused(network: NetworkConfig, agent: str, names: Sequence[str]) -> None:
    """Raise ValueError if one of these settings is not at its default."""
    for name in names:
        default, got = settings_of(NetworkSettings)[name].default, getattr(network.settings, name)
        if got != default:
            raise ValueError(f"{name}: wanted {default} with agent {agent}, whose policy does not use it, got {got}")


def check_distribution(network: NetworkConfig, agent: str, wanted: str = "auto") -> None:
    """Raise ValueError if `--action_distribution` names another than the agent's own."""
    got = network.settings.action_distribution
    if got not in ("auto", wanted):
        names = " or ".join(dict.fromkeys(("auto", wanted)))
        raise ValueError(f"action_distribution: wanted {names} with agent {agent}, got {got}")
