"""Networks and agents of the benchmarks, built in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from agents import Agent
from agents.networks.base import FeatureNetwork, make_network, on_device
from learner.building import make_agent
from learner.plan import make_plan
from learner.settings.config import Config


def learner_network(config: Config) -> FeatureNetwork:
    """Return a new network on the learner's device and in its precision."""
    network = make_network(replace(make_plan(config).network, precision=config.training.precision))
    return on_device(network, torch.device(config.training.device))


def learner_agent(config: Config, network: FeatureNetwork, **how: Any) -> Agent:
    """Return the agent that trains `network`. how: threads and compiled, see `learner.building.make_agent`."""
    return make_agent(config, network, **how)
