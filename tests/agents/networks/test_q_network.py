"""Networks with Q-values: shapes, masks, exploration, stored fields, and heads that agree with their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agents.dqn.config import DqnConfig
from agents.networks.base import NetworkConfig, make_network
from agents.networks.exploration import epsilon_ladder
from agents.networks.q_network import BEHAVIOUR_Q, BEHAVIOUR_Q_MAX, ILLEGAL_VALUE, QNetwork
from agents.networks.settings import NetworkSettings
from tests.agents.support import each_golden_case
from wrappers.spaces import ACTION_MASK, ActionSpace, Box, Discrete, Leaf, MultiDiscrete

SPACES: dict[str, ActionSpace] = {"one choice": Discrete(4), "several choices": MultiDiscrete((2, 4, 3))}
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "c51": {"return_distribution": "c51", "atoms": 7},
    "qr": {"return_distribution": "qr", "quantiles": 5},
    "iqn": {"return_distribution": "iqn", "acting_fractions": 6, "head_units": 3},
    "hl_gauss": {"return_distribution": "hl_gauss", "atoms": 7},
    "rainbow": {"return_distribution": "c51", "dueling": True, "noisy": True},
}


def network_of(space: ActionSpace = SPACES["one choice"], leaves: tuple[Leaf, ...] = (), **settings: Any) -> QNetwork:
    shape = (1, sum(leaf.bytes for leaf in leaves)) if leaves else (1, 5)
    config = NetworkConfig(NetworkSettings("mlp"), shape, space, QNetwork, leaves=leaves, agent=DqnConfig(**settings))
    network: QNetwork = make_network(config, torch.Generator().manual_seed(1))
    return network.only_act()


def observations(count: int) -> Tensor:
    return torch.randn(count, 1, 5, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))
def test_acting_gives_legal_actions_and_the_declared_fields(space: ActionSpace, heads: str) -> None:
    network = network_of(space, **HEADS[heads])
    inferred = network.infer(observations(9))
    chosen = network.choose(inferred, torch.Generator().manual_seed(3))
    assert space.check(chosen.actions.numpy(), 9).shape == (9, *space.shape)
    declared = QNetwork.acting(network.config).fields
    assert {name: tuple(value.shape[1:]) for name, value in chosen.fields.items()} == {
        name: field.shape for name, field in declared.items()
    }
    assert inferred.output.q.shape == (9, space.mask_size)


@pytest.mark.parametrize("heads", ["plain", "dueling", "c51", "qr", "iqn", "hl_gauss"])
def test_the_best_action_has_the_largest_value_of_each_component(heads: str) -> None:
    network = network_of(SPACES["several choices"], **HEADS[heads])
    inferred = network.infer(observations(6))
    chosen = network.choose(inferred, None, greedy=True)
    parts = inferred.output.q.split([2, 4, 3], -1)
    assert torch.equal(chosen.actions, torch.stack([part.argmax(-1) for part in parts], -1))
    wanted = torch.stack([part.amax(-1) for part in parts], -1).mean(-1)
    torch.testing.assert_close(chosen.fields[BEHAVIOUR_Q_MAX], wanted)
    torch.testing.assert_close(chosen.fields[BEHAVIOUR_Q], wanted)


def test_the_value_of_a_random_action_is_its_own() -> None:
    network = network_of()
    inferred = network.infer(observations(50))
    chosen = network.choose(inferred, torch.Generator().manual_seed(4), torch.ones(50, 1))
    own = inferred.output.q[torch.arange(50), chosen.actions]
    torch.testing.assert_close(chosen.fields[BEHAVIOUR_Q], own)
    assert (chosen.fields[BEHAVIOUR_Q_MAX] - own).max() > 0.01


def test_values_are_means_of_distributions() -> None:
    categorical, quantile = network_of(**HEADS["c51"]), network_of(**HEADS["qr"])
    output = categorical.infer(observations(3)).output
    wanted = (torch.softmax(output.atoms, -1) * torch.linspace(-10, 10, 7)).sum(-1)
    torch.testing.assert_close(output.q, wanted)
    output = quantile.infer(observations(3)).output
    torch.testing.assert_close(output.q, output.atoms.mean(-1))
    output = network_of(**HEADS["hl_gauss"]).infer(observations(3)).output
    centres = torch.linspace(-10, 10, 8)[:-1] + 10 / 7
    torch.testing.assert_close(output.q, (torch.softmax(output.atoms, -1) * centres).sum(-1))


@each_golden_case("iqn.json", only=lambda case: case["name"] == "embedding_from_0")
def test_quantiles_at_fractions_are_those_of_embedded_features(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    features, fractions, weight, bias, head_weight, head_bias = (torch.tensor(values) for values in given.values())
    network = network_of(return_distribution="iqn", acting_fractions=fractions.shape[1])
    assert isinstance(network.action_head, nn.Linear)
    with torch.no_grad():  # the case has 4 cosines and features; all others have no weight
        for parameter in (network.fraction_head.weight, network.fraction_head.bias, network.action_head.weight):
            parameter.zero_()
        network.fraction_head.weight[:4, :4].copy_(weight.T)
        network.fraction_head.bias[:4].copy_(bias)
        network.action_head.weight[:, :4].copy_(head_weight.T)
        network.action_head.bias.copy_(head_bias)
    padded = nn.functional.pad(features, (0, network.feature_count - 4))
    output = network.heads(padded, None, fractions)
    torch.testing.assert_close(output.atoms, torch.tensor(wanted["quantiles"]), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(output.q, torch.tensor(wanted["q"]), rtol=2e-6, atol=2e-6)


def test_acting_draws_fractions_and_evaluations_take_the_midpoints() -> None:
    network = network_of(return_distribution="iqn", acting_fractions=4)
    output = network.infer(observations(3)).output
    torch.testing.assert_close(output.fractions, torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(3, 4))
    torch.testing.assert_close(output.q, output.atoms.mean(-1))
    fractions = output.fractions.clone()
    network.draw_noise(torch.Generator().manual_seed(7))
    drawn = network.infer(observations(3)).output
    assert not torch.equal(drawn.q, output.q)
    # Behind the fractions of targets stand those that select the action.
    both = network(observations(3), fractions=torch.cat([torch.rand(3, 5), fractions], -1))
    torch.testing.assert_close(both.q, output.q)


@pytest.mark.parametrize("network", ["mlp", "conv", "nature", "impala_deep"])
def test_heads_with_a_hidden_layer_take_the_place_of_the_network_s_last_one(network: str) -> None:
    shape = (1, 5) if network == "mlp" else (1, 36, 36)
    settings = NetworkSettings(network, layer_norm=True)

    def layers_of(units: int) -> dict[str, torch.Size]:
        agent = DqnConfig(head_units=units, dueling=True, noisy=True)
        made = make_network(NetworkConfig(settings, shape, SPACES["one choice"], QNetwork, agent=agent))
        assert made.infer(torch.zeros(2, *shape)).output.q.shape == (2, 4)
        return {name: tensor.shape for name, tensor in made.named_parameters() if not name.endswith("sigma")}

    usual, moved = layers_of(0), layers_of(11)
    torso = [name for name in usual if name.startswith("torso")]
    assert [name for name in moved if name.startswith("torso")] == torso[:-4]  # weights and biases of the layer and its norm
    inputs = usual[torso[-4]][1]
    assert moved["action_head.0.weight"] == moved["state_head.0.weight"] == (11, inputs)
    assert (moved["action_head.3.weight"], moved["state_head.3.weight"]) == ((4, 11), (1, 11))


@pytest.mark.parametrize("name", ["flat", "simba"])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_network_that_ends_in_no_hidden_layer_has_none_to_move(name: str, *, noisy: bool) -> None:
    settings, agent = NetworkSettings(name), DqnConfig(head_units=8, noisy=noisy)
    config = NetworkConfig(settings, (1, 5), SPACES["one choice"], QNetwork, agent=agent)
    with pytest.raises(ValueError, match="^head_units: wanted 0 with "):
        make_network(config)


def test_dueling_advantages_have_the_mean_of_the_state_in_each_component() -> None:
    network = network_of(SPACES["several choices"], dueling=True)
    inferred = network.infer(observations(3))
    assert network.state_head is not None
    for part in inferred.output.q.split([2, 4, 3], -1):
        torch.testing.assert_close(part.mean(-1, keepdim=True), network.state_head(inferred.features))


@pytest.mark.parametrize("heads", ["plain", "rainbow", "iqn"])
def test_an_illegal_action_is_never_taken(heads: str) -> None:
    leaves = (Leaf(ACTION_MASK, (4,), "uint8"), Leaf("vector", (3,), "uint8"))
    network = network_of(leaves=leaves, **HEADS[heads])
    mask = torch.tensor([0, 1, 0, 1], dtype=torch.uint8)
    packed = torch.cat([mask, torch.tensor([5, 6, 7], dtype=torch.uint8)]).expand(200, 1, 7)
    inferred = network.infer(packed.clone())
    assert (inferred.output.q[:, mask == 0] == ILLEGAL_VALUE).all()
    for exploration in (torch.zeros(200, 1), torch.ones(200, 1)):
        actions = network.choose(inferred, torch.Generator().manual_seed(5), exploration).actions
        assert set(actions.tolist()) <= {1, 3}
    assert set(actions.tolist()) == {1, 3}


def test_a_schedule_explores_by_the_networks_epsilon_and_a_ladder_by_the_environments_own() -> None:
    schedule, ladder = network_of(epsilon_start=0.5), network_of(exploration="ladder")
    environments = torch.arange(4)
    assert schedule.exploration(environments, 4) is None
    torch.testing.assert_close(ladder.exploration(environments, 4), epsilon_ladder(environments, 4).unsqueeze(-1))
    inferred = schedule.infer(observations(1))._replace(output=None)
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(8000, 4)
    inferred = inferred._replace(output=schedule.heads(torch.zeros(8000, schedule.feature_count))._replace(q=q))
    for epsilon in (0.0, 0.4):
        schedule.epsilon.fill_(epsilon)
        actions = schedule.choose(inferred, torch.Generator().manual_seed(6)).actions
        assert (actions != 1).float().mean() == pytest.approx(0.75 * epsilon, abs=0.02)
    assert "epsilon" in schedule.state_dict()  # it travels with the weights


@pytest.mark.parametrize("exploration", ["schedule", "ladder"])
@pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))
def test_random_actions_are_repeated_and_evaluations_explore_for_one_step(space: ActionSpace, exploration: str) -> None:
    network = network_of(space, epsilon_zeta=0.5, epsilon_start=0.4, exploration=exploration)
    numbers = network.exploration(torch.arange(50), 50)
    assert numbers is not None
    inferred, generator, repeats = network.infer(observations(50)), torch.Generator().manual_seed(6), 0
    actions = network.choose(inferred, generator, numbers)
    for _ in range(20):
        assert actions.exploration is not None
        assert torch.equal(actions.exploration[:, : -network.noise_size], numbers[:, : -network.noise_size])
        under_way = actions.exploration[:, -network.noise_size] > 0
        after = network.choose(inferred, generator, actions.exploration)
        assert torch.equal(after.actions[under_way], actions.actions[under_way])
        repeats += int(under_way.sum())
        actions = after
    assert repeats > 100
    assert network.choose(inferred, generator, torch.ones(50, 1)).exploration is None


def test_noisy_layers_replace_epsilon_and_act_with_new_noise_after_each_draw() -> None:
    network = network_of(noisy=True, epsilon_start=1.0)
    assert network.epsilon == 0.0
    means = network.infer(observations(3)).output.q
    network.draw_noise(torch.Generator().manual_seed(7))
    first, again = (network.infer(observations(3)).output.q for _ in range(2))
    network.draw_noise(torch.Generator().manual_seed(8))
    other = network.infer(observations(3)).output.q
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, means)


def test_actions_without_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted choices"):
        make_network(replace(network_of().config, action=Box((-1.0,), (1.0,))))
