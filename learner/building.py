"""Builds the network, the agent and the trajectory contract from the settings and the environment."""

from __future__ import annotations

from typing import Any

import torch

from agents import AGENTS, Agent, find_agent
from agents.networks.base import FeatureNetwork, NetworkConfig, make_network
from agents.user_agent import decides_on_graphs
from learner.settings.config import Config
from replay import needs_features, replay_names
from replay.trajectory import Field, TrajectoryContract
from wrappers import make_spec


def agent_class(config: Config) -> type[Agent]:
    """The class of the run's agent."""
    return find_agent(config.agent)


def make_network_config(config: Config, precision: str = "float32") -> NetworkConfig:
    """The description of the run's network, for observations and actions of its environment."""
    spec = make_spec(config.env)
    return NetworkConfig(
        settings=config.network_settings,
        observation_shape=spec.observation_shape,
        action=spec.action,
        network_class=agent_class(config).network_class,
        precision=precision,
        leaves=spec.leaves,
        agent=config.agent_settings,
    )


def make_network_shapes(config: Config) -> FeatureNetwork:
    """The run's network on PyTorch's meta device: names, shapes and dtypes, but no values. Raises ValueError."""
    with torch.device("meta"):
        return make_network(make_network_config(config, config.training.precision))


def make_agent(config: Config, network: FeatureNetwork, *, threads: int = 1, compiled: bool = False) -> Agent:
    """The run's agent, which learns with `network`. threads and compiled: see `agents.engine.stepper.Stepper`."""
    make: Any = agent_class(config)
    # Threads that share an operation round its sums in another way than one does, and when they do depends on the time.
    idle_cores = config.needs.workers_wait and config.training.device == "cpu" and not config.training.reproducible
    replays = replay_names(config.replays)
    how = {"threads": threads, "compiled": compiled, "idle_cores": idle_cores}
    # A user's code may make decisions on the host, which a graph would not repeat. Compiled passes launch few kernels anyway.
    repeats = ":" not in config.network and (config.agent in AGENTS or decides_on_graphs(make))
    graphs = config.training.cuda_graphs and not compiled and repeats
    agent: Agent = make(config.agent_settings, network, replays, **how, cuda_graphs=graphs)
    return agent


def make_contract(config: Config) -> TrajectoryContract:
    """The contract of the run's trajectories."""
    spec, network, burn_in = make_spec(config.env), make_network_config(config), config.network_settings.burn_in
    shapes = make_network_shapes(config)
    scales_rewards = getattr(config.agent_settings, "normalise_rewards", False)
    return TrajectoryContract(
        # Rows of burn-in repeat the trajectory before, so they come on top of the rows that are learned from.
        unroll_length=config.training.unroll_length + burn_in,
        frames_stacked=spec.frames_stacked,
        frame=Field(spec.frame_shape, spec.frame_dtype),
        action=Field(spec.action.shape, spec.action.dtype),
        acting=agent_class(config).acting(config.agent_settings, network).fields,
        feature_count=shapes.feature_count if needs_features(config.replays) else 0,
        return_discount=config.agent_settings.gamma if scales_rewards else None,
        state_size=shapes.state_size,
        overlap=burn_in,
        window=config.needs.window,
        episodes=config.needs.episodes,
    )
