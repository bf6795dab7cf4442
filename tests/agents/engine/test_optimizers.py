"""Steps of the optimisers on convolutions, whose gradients may lie in memory in another order than their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from agents import AGENTS
from agents.base import Agent
from agents.engine.guard import give_gradients
from agents.networks.base import NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from replay.batch import Batch
from tests.agents.continuous.support import SPACE, windows
from tests.agents.evolution.support import ended_batch
from tests.agents.support import A, B, T, random_batch
from wrappers.spaces import Discrete

IMAGE = (2, 10, 10)
ONE_STEP: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 1, "minibatches": 1},
    "dqn": {"batches_at_once": 1, "target_update_rate": 0.5},
    "bcq": {"batches_at_once": 1, "target_update_rate": 0.5},
    "sac": {"batches_at_once": 1},
    "td3": {"batches_at_once": 1, "delay": 1},
    "ddpg": {"batches_at_once": 1},
    "es": {"population": 2},
}
CONTINUOUS = ("sac", "td3", "ddpg")


def agent_of(name: str) -> Agent:
    kind: Any = AGENTS[name]
    config = kind.config_class(**{"lr": 1e-2, "optimizer": "adam", **ONE_STEP.get(name, {})})
    settings = NetworkSettings("conv", conv="4x3x1", hidden_sizes="8", calibrate_input=False)
    if name == "r2d2":
        settings = replace(settings, core="lstm", core_size=8)
    action = SPACE if name in CONTINUOUS else Discrete(A)
    described = NetworkConfig(settings, IMAGE, action, kind.network_class, agent=config)
    agent: Agent = kind(config, make_network(described, torch.Generator().manual_seed(1)), ("standard",))
    return agent


def batch_for(name: str, agent: Agent) -> Batch:
    if name in CONTINUOUS:
        return windows(IMAGE)
    if name in ("dqn", "bcq"):
        return windows(IMAGE, Discrete(3))
    if name == "es":
        return replace(ended_batch([(1, 3.0), (2, 5.0)]), observations=torch.randn(3, 2, *IMAGE))
    state = torch.zeros(B, agent.network.state_size) if agent.network.core else None
    return replace(random_batch(), observations=torch.randn(T + 1, B, *IMAGE), recurrent_state=state)


# The policy of TRPO and all numbers of CEM and LinUCB move without the optimiser.
@pytest.mark.parametrize("name", [name for name in AGENTS if name not in ("trpo", "cem", "linucb")])
def test_a_step_on_images_is_that_of_plain_adam(name: str) -> None:
    """PyTorch's fused Adam pairs weights and gradients by their places in memory."""
    agent = agent_of(name)
    parameters = [parameter for module in agent.stepper.modules.values() for parameter in module.parameters()]
    plain = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    agent.learn(batch_for(name, agent), 0.0)
    assert agent.stepper.guard.steps == 1
    for own, parameter in zip(plain, parameters, strict=True):
        own.grad = None if parameter.grad is None else parameter.grad.clone(memory_format=torch.contiguous_format)
    torch.optim.Adam(plain, lr=1e-2, eps=agent.config.adam_eps, fused=False, foreach=False).step()
    for own, parameter in zip(plain, parameters, strict=True):
        torch.testing.assert_close(parameter, own, rtol=1e-4, atol=1e-6)


def test_gradients_take_the_layout_of_their_weights() -> None:
    convolution = nn.Conv2d(6, 4, 3)
    gradient = torch.randn(4, 6, 3, 3).contiguous(memory_format=torch.channels_last)
    give_gradients([convolution.weight], [gradient])
    assert convolution.weight.grad is not None
    assert convolution.weight.grad.stride() == convolution.weight.stride()
    assert torch.equal(convolution.weight.grad, gradient)
