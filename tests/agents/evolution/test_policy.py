"""A policy with other weights in each environment: whose weights they are, and which member plays when."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from agents.evolution.policy import PopulationPolicy
from tests.agents.evolution.support import network_here
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

ES, CEM = "es", "cem"
BOTH = pytest.mark.parametrize("name", [ES, CEM])
HALF_BOUNDED = Box((-1.0, -math.inf), (1.0, math.inf))


def begin(network: PopulationPolicy, environments: Sequence[int], total: int) -> Tensor:
    """The exploration of these environments after their first observations."""
    exploration = network.exploration(torch.tensor(environments), total)
    assert exploration is not None
    return network.begun(exploration, torch.ones(len(environments), dtype=torch.bool))


def next_members(network: PopulationPolicy, exploration: Tensor, first: Sequence[int]) -> tuple[Tensor, list[int]]:
    """The exploration after these environments began another episode, and the members that all of them play."""
    mask = torch.zeros(len(exploration), dtype=torch.bool)
    mask[list(first)] = True
    exploration = network.begun(exploration, mask)
    return exploration, exploration[:, 2].long().tolist()


def moved(network: PopulationPolicy, member: int) -> PopulationPolicy:
    """A copy of the network with the member's weights as its own."""
    copied = type(network)(network.config)
    copied.load_state_dict(network.state_dict())
    with torch.no_grad():
        for weights, part in zip(copied.parameters(), network.parts_of(network.perturbation(member)), strict=True):
            weights += part
    return copied


@pytest.mark.parametrize("network_name", ["mlp", "conv"])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@BOTH
def test_each_environment_sees_its_observation_with_the_weights_of_its_member(name: str, core: str, network_name: str) -> None:
    options = {"hidden_sizes": "6"} if network_name == "mlp" else {"hidden_sizes": "6", "conv": "4x8x4"}
    network = network_here(name, core=core, network=network_name, **options)
    exploration = begin(network, [1, 2], 4)
    network.draw_noise(None, exploration)
    shape = network.config.observation_shape
    observations = torch.randn((2, *shape), generator=torch.Generator().manual_seed(3))
    state = torch.randn((2, network.state_size)) if core != "none" else None
    with torch.inference_mode():
        inferred = network.infer(observations, state)
        for row, member in enumerate((2, 3)):
            wanted = moved(network, member).infer(observations[row : row + 1], None if state is None else state[row : row + 1])
            torch.testing.assert_close(inferred.output.policy[row : row + 1], wanted.output.policy)
            torch.testing.assert_close(inferred.features[row : row + 1], wanted.features)
            if core != "none":
                assert inferred.state is not None
                assert wanted.state is not None
                torch.testing.assert_close(inferred.state[row : row + 1], wanted.state)
    assert not torch.allclose(moved(network, 2).policy_head.weight, moved(network, 3).policy_head.weight)


@BOTH
def test_some_of_the_environments_may_ask(name: str) -> None:
    network = network_here(name)
    exploration = begin(network, [0, 1, 2], 3)
    observations = torch.randn(3, 1, 3)
    network.draw_noise(None, exploration)
    every = network.infer(observations).output.policy
    network.draw_noise(None, exploration[[2, 0]])
    torch.testing.assert_close(network.infer(observations[[2, 0]]).output.policy, every[[2, 0]])
    network.draw_noise(None, exploration)
    assert network.infer(observations).output.policy.equal(every)


@BOTH
def test_an_evaluation_sees_the_centre(name: str) -> None:
    network = network_here(name)
    observations = torch.randn(2, 1, 3)
    torch.testing.assert_close(network.infer(observations).output.policy, network(observations).policy)
    chosen = network.choose(network.infer(observations), None, greedy=True)
    assert not chosen.fields["member"].any()


def test_members_of_a_pair_lie_on_both_sides_of_the_centre() -> None:
    network = network_here(ES, noise_std=0.25)
    one, other = network.perturbation(1), network.perturbation(2)
    assert one.equal(-other)
    assert float(one.std()) == pytest.approx(0.25, rel=0.05)
    assert not torch.allclose(network.perturbation(3).abs(), one.abs())


def test_members_of_cem_are_drawn_with_a_deviation_for_each_weight() -> None:
    network = network_here(CEM, initial_std=0.5)
    first = network.perturbation(1)
    assert float(first.std()) == pytest.approx(0.5, rel=0.05)
    network.std[::2] = 0.0  # type: ignore[index, operator]
    changed = network.perturbation(1)
    assert not changed[::2].any()
    assert changed[1::2].equal(first[1::2])


@BOTH
def test_noise_follows_from_the_run_the_generation_and_the_number_alone(name: str) -> None:
    network, again, other_run = (network_here(name, seed=seed) for seed in (1, 1, 2))
    assert network.noise(3).equal(again.noise(3))
    assert not network.noise(3).equal(network.noise(4))
    assert not network.noise(3).equal(other_run.noise(3))
    before = network.noise(3)
    network.generation += 1
    assert not network.noise(3).equal(before)


@pytest.mark.parametrize("population", [4, 6, 8, 20])
def test_every_member_is_played_once_whoever_is_free_first(population: int) -> None:
    """Two policies, of three environments and of two. The episodes of some environments are much shorter."""
    brought: list[int] = []
    for environments in ([0, 1, 2], [3, 4]):
        network = network_here(ES, population=population)
        exploration = begin(network, environments, 5)
        played = exploration[:, 2].long().tolist()
        for first in ([1], [1], [0, 1], [1], [0], [0, 1], *([0, 1],) * 10):
            exploration, members = next_members(network, exploration, first)
            played += [members[place] for place in first]
        own = [*(played if 0 not in played else played[: played.index(0)])]
        assert len(set(own)) == len(own)
        brought += own
    assert sorted(brought) == list(range(1, population + 1))


def test_a_lost_member_plays_again_and_one_that_plays_does_not() -> None:
    """Environment 0 plays member 1 all the time; that of member 2 was replaced within its episode."""
    network = network_here(ES, population=4)
    exploration = begin(network, [0, 1], 2)
    found = []
    for _ in range(12):
        exploration, members = next_members(network, exploration, [1])
        found.append(members[1])
    assert found == [3, 4, 0, 0, 0, 2, 0, 3, 0, 4, 0, 0]


def test_a_member_that_plays_in_another_group_does_not_play_again() -> None:
    network = network_here(ES, population=4)
    exploration = network.exploration(torch.arange(2), 2)
    assert exploration is not None
    exploration[[0]] = network.begun(exploration[[0]], torch.ones(1, dtype=torch.bool))
    found = []
    for _ in range(9):
        exploration[[1]] = network.begun(exploration[[1]], torch.ones(1, dtype=torch.bool))
        found.append(int(exploration[1, 2]))
    assert found == [2, 3, 4, 0, 0, 0, 2, 0, 3]


def test_an_episode_keeps_its_member_to_its_end() -> None:
    network = network_here(ES)
    exploration = begin(network, [0, 1], 2)
    for _ in range(3):
        exploration, members = next_members(network, exploration, [])
        assert members == [1, 2]
    exploration, members = next_members(network, exploration, [1])
    assert members == [1, 3]


def test_episodes_of_an_older_generation_go_on_with_the_new_centre() -> None:
    network = network_here(ES)
    exploration = begin(network, [0, 1], 2)
    network.draw_noise(None, exploration)
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(0.5)
    network.generation += 1
    exploration, members = next_members(network, exploration, [1])
    assert members == [1, 1]
    assert exploration[:, 1].tolist() == [1.0, 2.0]  # the first one's episode counts in no generation
    network.draw_noise(None, exploration)
    observations = torch.randn(2, 1, 3)
    found = network.infer(observations).output.policy
    torch.testing.assert_close(found[:1], network(observations[:1]).policy)
    torch.testing.assert_close(found[1:], moved(network, 1)(observations[1:]).policy)


@BOTH
def test_the_same_member_of_the_next_generation_has_other_weights(name: str) -> None:
    network = network_here(name)
    exploration = begin(network, [0], 1)
    observations = torch.randn(1, 1, 3)
    for _ in range(2):
        network.draw_noise(None, exploration)
        torch.testing.assert_close(network.infer(observations).output.policy, moved(network, 1)(observations).policy)
        network.generation += 1
        exploration, members = next_members(network, exploration, [0])
        assert members == [1]


@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((3, 2)), HALF_BOUNDED])
@BOTH
def test_actions_are_the_best_ones_of_the_member_and_in_their_space(name: str, action: ActionSpace) -> None:
    network = network_here(name, action, **({"noise_std": 3.0} if name == ES else {"initial_std": 3.0}))
    exploration = begin(network, list(range(40)), 40)
    network.draw_noise(None, exploration)
    inferred = network.infer(20 * torch.randn(40, 1, 3))
    chosen = network.choose(inferred, None, exploration)
    assert chosen.actions.equal(network.best_actions(inferred.output))
    assert chosen.fields["member"].tolist() == list(range(1, 41))
    assert chosen.fields["generation"].tolist() == [1.0] * 40
    assert len(chosen.actions.unique(dim=0)) > 1
    if action is HALF_BOUNDED:
        bounded, unbounded = chosen.actions.unbind(-1)
        assert bounded.abs().max() <= 1.0
        assert unbounded.abs().max() > 1.0


def test_an_illegal_action_is_chosen_by_no_member() -> None:
    network = network_here(ES, noise_std=3.0)
    policy = network.heads(torch.randn(50, network.feature_count), torch.tensor([[1, 0, 1]]).expand(50, 3)).policy
    assert not (policy.argmax(-1) == 1).any()


def test_groups_that_ask_in_turn_play_every_member_once_in_each_generation() -> None:
    """As with a central policy: a group does not ask again before the other one has a new generation."""
    network = network_here(ES, population=12)
    exploration = network.exploration(torch.arange(4), 4)
    assert exploration is not None
    for _ in range(3):
        played: list[int] = []
        for rows in ([0, 1], [2, 3]) * 3:
            exploration[rows] = network.begun(exploration[rows], torch.ones(2, dtype=torch.bool))
            played += exploration[rows, 2].long().tolist()
        assert sorted(played) == list(range(1, 13))
        network.generation += 1
