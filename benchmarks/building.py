"""Networks and agents of the benchmarks, built in one place."""

from __future__ import annotations

import torch

from agents import AGENTS, Agent
from agents.networks.actor_critic import ActorCritic, make_network, on_device
from learner.settings.config import Config
from replay import replay_names
from wrappers import EnvSpec, make_spec


def acting_network(name: str, spec: EnvSpec) -> ActorCritic:
    """Return a new network in float32 on the CPU, as worker processes act with."""
    return make_network(name, spec.observation_shape, spec.action_count)


def learner_network(config: Config) -> ActorCritic:
    """Return a new network on the learner's device and in its precision."""
    spec, training = make_spec(config.env), config.training
    network = make_network(config.network, spec.observation_shape, spec.action_count, precision=training.precision)
    return on_device(network, torch.device(training.device))


def learner_agent(config: Config, network: ActorCritic, *, threads: int = 1, compiled: bool = False) -> Agent:
    """Return the agent that trains `network`. threads: that compute an update on a CPU."""
    return AGENTS["vtrace"](config.agent, network, replay_names(config.replays), threads=threads, compiled=compiled)
