"""Spectral normalisation: the norm, its gradient, and vectors that move with the optimiser's steps alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from agents.dqn.agent import DqnAgent, DqnConfig
from agents.networks.base import NetworkConfig, make_network
from agents.networks.q_network import QNetwork
from agents.networks.settings import NetworkSettings
from agents.networks.spectral import SpectralConv2d, spectral_layers
from replay.batch import Batch
from tests.support import same
from wrappers.spaces import Discrete


def layer_of() -> SpectralConv2d:
    layer = SpectralConv2d(3, 5, 3, padding=1)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    layer.start(torch.Generator().manual_seed(2))
    return layer


def test_outputs_and_gradients_are_those_of_pytorch() -> None:
    layer, reference = layer_of(), nn.Conv2d(3, 5, 3, padding=1)
    reference.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    weight = reference.weight
    nn.utils.parametrizations.spectral_norm(reference).eval()
    vectors = reference.parametrizations["weight"][0]
    vectors._u.copy_(layer.left)
    vectors._v.copy_(layer.right)
    inputs = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(3))
    got, wanted = layer(inputs), reference(inputs)
    torch.testing.assert_close(got, wanted)
    got.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, weight.grad)


def agent_of(threads: int = 1) -> DqnAgent:
    config = DqnConfig(lr=0.05, batches_at_once=1, target_update_period=2)
    settings = NetworkSettings("impala_deep", spectral_norm=True)
    described = NetworkConfig(settings, (1, 8, 8), Discrete(3), QNetwork, agent=config)
    return DqnAgent(config, make_network(described, torch.Generator().manual_seed(1)), threads=threads)


def batch_of(reward: float = 1.0) -> Batch:
    generator, count = torch.Generator().manual_seed(4), 6
    rows = torch.zeros(1, count, dtype=torch.bool)
    return Batch(
        observations=torch.randint(256, (2, count, 1, 8, 8), dtype=torch.uint8, generator=generator),
        actions=torch.randint(3, (1, count), generator=generator),
        rewards=torch.full((1, count), reward),
        terminated=rows,
        reset=rows,
        action_used=~rows,
        acting={},
        is_replay=torch.ones(count, dtype=torch.bool),
        source=torch.zeros(count, dtype=torch.int64),
    )


@pytest.mark.usefixtures("divided")
def test_a_step_moves_the_vectors_once_and_the_target_network_copies_them() -> None:
    agent, divided = agent_of(), agent_of(threads=2)
    before = [layer.left.clone() for layer in spectral_layers(agent.network)]
    for _ in range(2):
        agent.learn(batch_of(), 0.0)
        divided.learn(batch_of(), 0.0)
    networks = (agent.network, agent.target.network, divided.network)
    for first, own, lagged, other in zip(before, *(spectral_layers(each) for each in networks), strict=True):
        assert not torch.equal(first, own.left)
        assert torch.equal(own.left, lagged.left)
        torch.testing.assert_close(own.left, other.left, rtol=1e-3, atol=1e-3)
        exact = torch.linalg.matrix_norm(own.weight.detach().flatten(1), 2)
        torch.testing.assert_close(own.norm().detach(), exact, rtol=0.1, atol=0)  # one iteration follows each step
    loaded = agent_of()
    loaded.load_state_dict(copy.deepcopy(agent.state_dict()), load_optimizer=True)
    assert same(loaded.state_dict()["modules"], agent.state_dict()["modules"])


def test_a_refused_step_leaves_the_vectors() -> None:
    agent = agent_of()
    agent.learn(batch_of(), 0.0)
    before = copy.deepcopy(agent.state_dict())
    agent.learn(batch_of(reward=float("nan")), 0.0)
    assert same(before, agent.state_dict())
