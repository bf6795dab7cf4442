"""Agents, settings, networks and torsos are near their base classes: a reader of one opens at most one other between them."""

from __future__ import annotations

import pytest

from agents import AGENTS
from agents.base import Agent
from agents.networks.base import FeatureNetwork
from agents.networks.torsos import TORSOS, Torso
from agents.settings import AgentConfig

DEEPEST = 2
"""Classes from a base class down to an agent, its settings or its network: TD3's is between `Agent` and DDPG's."""


def depth(kind: type, base: type) -> int:
    """The number of classes from `base`, which does not count, down to `kind`, on the longest way."""
    if kind is base:
        return 0
    assert issubclass(kind, base)
    return 1 + max(depth(each, base) for each in kind.__bases__ if issubclass(each, base))


@pytest.mark.parametrize("name", AGENTS)
def test_agents_settings_and_networks_are_at_most_two_classes_below_their_base(name: str) -> None:
    assert depth(AGENTS[name], Agent) <= DEEPEST
    assert depth(AGENTS[name].config_class, AgentConfig) <= DEEPEST
    assert depth(AGENTS[name].network_class, FeatureNetwork) <= DEEPEST


@pytest.mark.parametrize("name", TORSOS)
def test_torsos_are_at_most_two_classes_below_their_base(name: str) -> None:
    assert depth(TORSOS[name], Torso) <= DEEPEST
