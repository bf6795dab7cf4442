"""The heads of an actor-critic for every action space: parameters, first policies, masks, and the fields that acting stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.distributions import ILLEGAL_LOGIT
from agents.networks.actor_critic import RAW_ACTION, ActorCritic, drawn_actions
from agents.networks.base import NetworkConfig, make_network
from agents.networks.settings import NetworkSettings
from wrappers.spaces import ACTION_MASK, ActionSpace, Box, Discrete, Leaf, MultiDiscrete

BOX = Box((-2.0, 0.0, -1.0), (3.0, 1.0, 1.0))
SPACES: dict[str, tuple[ActionSpace, dict[str, Any], int]] = {
    "categorical": (Discrete(4), {}, 4),
    "multi_categorical": (MultiDiscrete((2, 4, 3)), {}, 9),
    "gaussian": (BOX, {}, 6),
    "gaussian of the network": (BOX, {"log_std": "network"}, 6),
    "squashed_gaussian": (BOX, {"action_distribution": "squashed_gaussian"}, 6),
    "beta": (BOX, {"action_distribution": "beta"}, 6),
}
"""Name -> action space, settings of the network, number of parameters."""


def config_of(name: str, **settings: Any) -> NetworkConfig:
    space, own, _ = SPACES[name]
    return NetworkConfig(NetworkSettings("mlp", **{**own, **settings}), (1, 5), space, ActorCritic)


def network_for(name: str, **settings: Any) -> ActorCritic:
    network: ActorCritic = make_network(config_of(name, **settings), torch.Generator().manual_seed(1))
    return network


def observations(count: int) -> Tensor:
    return torch.randn(count, 1, 5, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", SPACES)
def test_acting_gives_the_fields_that_it_declares(name: str) -> None:
    network, (space, _, parameters) = network_for(name), SPACES[name]
    with torch.no_grad():
        chosen = network.choose(network.infer(observations(7)), torch.Generator().manual_seed(3))
    declared = ActorCritic.acting(network.config).fields
    assert {field: (tuple(value.shape[1:]), str(value.dtype)) for field, value in chosen.fields.items()} == {
        field: (shape, f"torch.{dtype}") for field, (shape, dtype) in declared.items()
    }
    assert declared["behaviour_policy"].shape == (parameters,)
    assert space.check(chosen.actions.numpy(), 7) is not None
    assert (RAW_ACTION in declared) is (name == "squashed_gaussian")
    drawn = drawn_actions(chosen.actions, chosen.fields)
    assert torch.equal(network.distribution.action(drawn), chosen.actions)


@pytest.mark.parametrize("name", SPACES)
def test_greedy_actions_are_the_mode_and_need_no_generator(name: str) -> None:
    network = network_for(name)
    with torch.no_grad():
        inferred = network.infer(observations(7))
        chosen = network.choose(inferred, None, greedy=True)
    wanted = network.distribution.action(network.distribution.mode(inferred.output.policy))
    assert torch.equal(chosen.actions, wanted)


@pytest.mark.parametrize("name", [name for name in SPACES if name != "categorical"])
def test_the_first_policy_hardly_depends_on_the_observation(name: str) -> None:
    with torch.no_grad():
        policy = network_for(name)(observations(100)).policy
    assert policy.abs().max() < 0.1


@pytest.mark.parametrize("log_std", ["shared", "network"])
@pytest.mark.parametrize("initial", [-1.5, -2])  # a preset may write a whole number
def test_standard_deviations_begin_where_the_setting_says(log_std: str, initial: float) -> None:
    network = network_for("gaussian", log_std=log_std, initial_log_std=initial)
    with torch.no_grad():
        means, log_stds = network(observations(100)).policy.chunk(2, -1)
    assert means.abs().max() < 0.1
    assert (log_stds - initial).abs().max() < 0.1
    assert bool(log_stds.std(0).max() == 0) is (log_std == "shared")


def test_shared_standard_deviations_learn_and_are_part_of_the_weights() -> None:
    network = network_for("gaussian")
    network(observations(4)).policy.sum().backward()
    torch.testing.assert_close(network.log_std.grad, torch.full((3,), 4.0))
    assert "log_std" in network.state_dict()
    assert "log_std" not in network_for("gaussian of the network").state_dict()


@pytest.mark.parametrize("name", ["categorical", "multi_categorical"])
def test_a_mask_makes_actions_illegal_in_its_own_rows_alone(name: str) -> None:
    network, count = network_for(name), SPACES[name][2]
    mask = torch.ones(2, count, dtype=torch.uint8)
    mask[0, 1] = 0
    with torch.no_grad():
        features = network.features(observations(2))
        free, masked = network.heads(features), network.heads(features, mask)
    assert masked.policy[0, 1] == ILLEGAL_LOGIT
    assert torch.equal(masked.policy[mask.bool()], free.policy[mask.bool()])
    assert torch.equal(masked.values, free.values)


@pytest.mark.parametrize(("name", "size"), [("categorical", 5), ("gaussian", 3)])
def test_a_mask_that_does_not_fit_the_actions_is_refused_in_one_line(name: str, size: int) -> None:
    leaves = (Leaf("vector", (2,), "float32"), Leaf(ACTION_MASK, (size,), "uint8"))
    config = replace(config_of(name), observation_shape=(1, 8 + size), leaves=leaves)
    with pytest.raises(ValueError, match="wanted an action mask .*got one of shape") as caught:
        make_network(config)
    assert len(str(caught.value).splitlines()) == 1
