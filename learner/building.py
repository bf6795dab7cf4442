"""Builds the network and the agent of a run."""

from __future__ import annotations

from typing import Any

import torch

from agents import AGENTS, Agent, find_agent
from agents.networks.base import FeatureNetwork, NetworkConfig, make_network
from agents.user_agent import decides_on_graphs
from learner.settings.config import Config
from replay import replay_names


def agent_class(config: Config) -> type[Agent]:
    """The class of the run's agent."""
    return find_agent(config.agent)


def make_network_shapes(network: NetworkConfig) -> FeatureNetwork:
    """The network on PyTorch's meta device: names, shapes and dtypes, but no values. Raises ValueError."""
    with torch.device("meta"):
        return make_network(network)


def make_agent(config: Config, network: FeatureNetwork, *, threads: int = 1, compiled: bool = False) -> Agent:
    """The run's agent, which learns with `network`. threads and compiled: see `agents.engine.stepper.Stepper`."""
    make: Any = agent_class(config)
    # Threads that share an operation round its sums in another way than one does, and when they do depends on the time.
    idle_cores = config.needs.workers_wait and config.training.device == "cpu" and not config.training.reproducible
    replays = replay_names(config.replays)
    how: dict[str, Any] = {"threads": threads, "compiled": compiled, "idle_cores": idle_cores}
    # A user's code may make decisions on the host, which a graph would not repeat. Compiled passes launch few kernels anyway.
    repeats = ":" not in config.network and (config.agent in AGENTS or decides_on_graphs(make))
    if config.is_intrinsic:
        how["environments"] = config.workers.environments * config.training.learner_count
    graphs = config.training.cuda_graphs and not compiled and repeats
    agent: Agent = make(config.agent_settings, network, replays, **how, cuda_graphs=graphs)
    return agent
