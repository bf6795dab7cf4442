"""Small networks and agents of ES and CEM, and batches in which chosen members' episodes end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from agents import AGENTS
from agents.evolution.agent import PopulationAgent
from agents.evolution.policy import PopulationPolicy
from agents.networks.base import make_network
from agents.networks.settings import NetworkSettings
from replay.batch import Batch
from tests.builders import network_config
from wrappers.spaces import ActionSpace

FEATURES = 3


def network_here(
    name: str, action: ActionSpace | int = 3, *, core: str = "none", seed: int = 1, network: str = "mlp", **options: Any
) -> PopulationPolicy:
    """options: of the agent, or of the network's settings."""
    agent_class: Any = AGENTS[name]
    of_network = {key: value for key, value in options.items() if key in NetworkSettings.__dataclass_fields__}
    config = agent_class.config_class(**{key: value for key, value in options.items() if key not in of_network})
    shape = (1, FEATURES) if network == "mlp" else (2, 36, 36)
    with_core = {} if core == "none" else {"core": core, "core_size": 4}
    built = network_config(network, shape, action, network_class=agent_class.network_class, **with_core, **of_network)
    made: PopulationPolicy = make_network(replace(built, agent=config), torch.Generator().manual_seed(seed))
    return made


def agent_here(name: str, **options: Any) -> PopulationAgent:
    network = network_here(name, hidden_sizes="5", **options)
    agent: PopulationAgent = AGENTS[name](network.config.agent, network)  # type: ignore[call-arg]
    return agent


def ended_batch(returns: Sequence[tuple[int, float]], generation: int = 1, rows: int = 2, seed: int = 0) -> Batch:
    """A batch with a column for each (member, return); the episode ends in the last row. A NaN is an episode that goes on."""
    generator, columns = torch.Generator().manual_seed(seed), len(returns)
    members = torch.tensor([float(member) for member, _ in returns]).expand(rows, columns)
    episodes = torch.full((rows, columns), math.nan)
    episodes[-1] = torch.tensor([value for _, value in returns])
    no = torch.zeros(rows, columns, dtype=torch.bool)
    return Batch(
        observations=torch.randn((rows + 1, columns, 1, FEATURES), generator=generator),
        actions=torch.zeros(rows, columns, dtype=torch.int64),
        rewards=torch.zeros(rows, columns),
        terminated=no,
        reset=no,
        action_used=~no,
        acting={"generation": torch.full((rows, columns), float(generation)), "member": members},
        is_replay=torch.zeros(columns, dtype=torch.bool),
        source=torch.zeros(columns, dtype=torch.int64),
        episode_return=episodes,
    )
