"""How the weights of a new network begin, by `--initial_weights`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agents import AGENTS
from agents.networks.base import NetworkConfig, make_network
from agents.networks.initial_weights import INITIAL_WEIGHTS
from agents.networks.settings import NetworkSettings
from agents.networks.torsos import TORSOS
from tests.agents.continuous.support import CONTINUOUS, SPACE
from tests.builders import network_of
from wrappers.spaces import Discrete


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3), nn.Linear(20, 7), nn.Linear(20, 7, bias=False)], ids=str)
def test_uniform_weights_are_those_of_pytorch(layer: nn.Conv2d | nn.Linear) -> None:
    torch.manual_seed(3)
    layer.reset_parameters()
    expected = [parameter.detach().clone() for parameter in layer.parameters()]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        INITIAL_WEIGHTS["uniform"](layer, 9.0, torch.Generator().manual_seed(3))
    for got, wanted in zip(layer.parameters(), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", sorted(TORSOS))
def test_uniform_weights_reach_every_layer(name: str) -> None:
    network = network_of(name, (4, 42, 42), 5, generator=torch.Generator().manual_seed(0), initial_weights="uniform")
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert layer.bias is not None
            assert 0 < layer.bias.abs().max() <= bound


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_takes_both(name: str) -> None:
    kind = AGENTS[name]

    def weights(initial: str) -> torch.Tensor:
        settings = NetworkSettings("conv", conv="4x3x1", hidden_sizes="8", initial_weights=initial)
        action = SPACE if name in CONTINUOUS else Discrete(3)
        config = NetworkConfig(settings, (2, 10, 10), action, kind.network_class, agent=kind.config_class())
        network = make_network(config, torch.Generator().manual_seed(1))
        return nn.utils.parameters_to_vector(network.torso.parameters())

    assert torch.equal(weights("uniform"), weights("uniform"))
    assert not torch.equal(weights("uniform"), weights("orthogonal"))
