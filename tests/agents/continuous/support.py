"""Small agents with critics, and batches of windows for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agents import AGENTS
from agents.base import Agent
from agents.networks.base import NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from replay.batch import Batch
from wrappers.spaces import ActionSpace, Box, Discrete

CONTINUOUS = ("sac", "td3", "ddpg", "tqc", "crossq")
"""Agents with critics that take real numbers."""
NUMBERS_ALONE = ("td3", "ddpg", "tqc")
"""Those of them that take no choice."""
SPACE = Box((-1.0, -2.0), (1.0, 3.0))
ROWS = 12


def agent_of(
    name: str,
    shape: tuple[int, ...] = (1, 3),
    action: ActionSpace = SPACE,
    *,
    network: str = "mlp",
    threads: int = 1,
    normalise_observations: bool = False,
    **settings: Any,
) -> Agent:
    """An agent with hidden layers of 8 units; equal arguments give equal weights."""
    torch.manual_seed(3)
    kind = AGENTS[name]
    config = kind.config_class(**{"lr": 1e-2, "batches_at_once": 1, **settings})
    sizes = {"hidden_sizes": "8,8"} if network in ("mlp", "conv", "simba") else {}
    own = NetworkSettings(network, normalise_observations=normalise_observations, calibrate_input=False, **sizes)
    made = make_network(NetworkConfig(own, shape, action, kind.network_class, agent=config))
    agent = kind(config, made, ("standard",), threads=threads)  # type: ignore[call-arg]
    assert isinstance(agent, Agent)
    return agent


def windows(shape: tuple[int, ...] = (1, 3), action: ActionSpace = SPACE, rows: int = ROWS, length: int = 1) -> Batch:
    """Random windows whose every fifth one terminates at once."""
    torch.manual_seed(5)
    terminated = torch.zeros(length, rows, dtype=torch.bool)
    terminated[0, ::5] = True
    choice = isinstance(action, Discrete)
    return Batch(
        observations=torch.randn(length + 1, rows, *shape),
        actions=torch.randint(3, (length, rows)) if choice else torch.rand(length, rows, 2) * 2 - 1,
        rewards=torch.randn(length, rows),
        terminated=terminated,
        reset=torch.zeros(length, rows, dtype=torch.bool),
        action_used=torch.ones(length, rows, dtype=torch.bool),
        acting={},
        is_replay=torch.ones(rows, dtype=torch.bool),
        source=torch.zeros(rows, dtype=torch.int64),
    )


def weights(module: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in module.parameters()]


def changed(before: list[Tensor], module: nn.Module) -> bool:
    return any(not one.equal(other) for one, other in zip(before, module.parameters(), strict=True))


def learn(agent: Agent, batch: Batch, times: int = 1) -> None:
    for _ in range(times):
        torch.manual_seed(7)
        agent.learn(batch, 0.0)
