"""The update of V-MPO: every action space, unused rows, the network that acts, and the bounds of its multipliers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from agents.vmpo.agent import SMALLEST, VMPOAgent, VMPOConfig
from tests.agents.networks.test_policy_heads import SPACES, network_for
from tests.agents.support import make_network_here, random_batch, with_nan, with_other_unused_rows
from tests.agents.vtrace.test_action_spaces import batch_of
from tests.support import same

CONFIG = VMPOConfig(lr=1e-2, lr_end_value=1e-2, target_update_period=2)


def agent_of(**settings: Any) -> VMPOAgent:
    return VMPOAgent(replace(CONFIG, **settings), make_network_here())


@pytest.mark.parametrize("space", SPACES)
def test_an_update_is_finite_and_changes_every_weight(space: str) -> None:
    network = network_for(space)
    agent = VMPOAgent(CONFIG, network)
    for _ in range(2):  # the divergence from pi_old has no gradient before the first step
        before = {key: value.clone() for key, value in [*network.named_parameters(), *agent.multipliers.named_parameters()]}
        updated = agent.learn(batch_of(network), 0.0)
    assert all(value.isfinite() for value in updated.scalars.values())
    assert agent.take_skip_reasons(everything=True) == [None, None]
    after = [*network.named_parameters(), *agent.multipliers.named_parameters()]
    assert [key for key, value in after if (value == before[key]).all()] == []
    gaussian = network.policy_head.out_features > 0 and len(agent.epsilons) == 2
    assert gaussian == ("gaussian" in space)


def test_rows_whose_action_was_ignored_change_nothing() -> None:
    one, other = agent_of(), agent_of()
    one.learn(random_batch(), 0.0)
    other.learn(with_other_unused_rows(random_batch()), 0.0)
    assert same(one.state_dict(), other.state_dict())


def test_a_batch_without_a_used_step_leaves_the_multipliers() -> None:
    agent = agent_of()
    before = deepcopy(agent.multipliers.state_dict())
    batch = random_batch()
    agent.learn(replace(batch, action_used=torch.zeros_like(batch.action_used)), 0.0)
    assert agent.take_skip_reasons(everything=True) == [None]
    assert same(agent.multipliers.state_dict(), before)


def test_the_copy_acts_and_follows_every_second_update() -> None:
    agent = agent_of()
    first = deepcopy(agent.network.state_dict())
    agent.learn(random_batch(), 0.0)
    assert same(first, agent.acting_network.state_dict())
    assert not same(first, agent.network.state_dict())
    agent.learn(with_nan(random_batch(), "rewards"), 0.0)  # a refused update does not count
    assert same(first, agent.acting_network.state_dict())
    agent.learn(random_batch(), 0.0)
    assert same(agent.network.state_dict(), agent.acting_network.state_dict())


def test_the_policy_imitates_the_better_half() -> None:
    """With a bandit's batch: the rewarded half of the actions becomes more probable, the other less."""
    agent = agent_of(gamma=0.0, clip_rewards=False)
    batch = random_batch()
    rewards = torch.where(batch.actions == 1, 5.0, -5.0)
    batch = replace(batch, rewards=rewards)

    def probability() -> float:
        with torch.no_grad():
            policy = agent.network(batch.observations.flatten(0, 1)).policy.softmax(-1)
        return float(policy[:, 1].mean())

    before = probability()
    for _ in range(10):
        agent.learn(batch, 0.0)
    assert probability() > before + 0.1


def test_the_multipliers_follow_their_bounds() -> None:
    """A divergence above its bound raises alpha, and one below lowers it, down to its least value."""
    found = {}
    for bound in (1e-9, 1e3):
        agent = agent_of(initial_alpha=0.02, eps_alpha=bound, target_update_period=100)
        for seed in range(4):
            agent.learn(random_batch(seed), 0.0)
        found[bound] = agent.multipliers.alpha.item()
    assert found[1e-9] > 0.02
    assert found[1e3] == pytest.approx(SMALLEST)


def test_a_large_alpha_keeps_the_policy_near_the_copy() -> None:
    found = []
    for alpha in (1e-3, 1e3):
        agent = agent_of(initial_alpha=alpha, target_update_period=100)
        for _ in range(10):
            report = agent.learn(random_batch(), 0.0)
        found.append(float(report.scalars["losses/kl"]))
    assert found[1] < 0.3 * found[0]
