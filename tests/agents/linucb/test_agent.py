"""The agent LinUCB: what it learns from a batch, how it chooses, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.linucb.agent import LinUCBAgent, LinUCBConfig
from agents.linucb.arms import solved, sums_of
from agents.linucb.network import LinUCBNetwork, LinUCBOutput
from agents.networks.base import NetworkOutput, make_network
from agents.networks.q_network import ILLEGAL_VALUE
from learner.ranks.group import LearnerGroup
from replay.batch import Batch
from tests.builders import network_config
from tests.learner.ranks.support import together
from tests.support import same
from wrappers.spaces import Box, Discrete, MultiDiscrete

ARMS, FEATURES, ROWS, COLUMNS = 3, 2, 5, 4


def agent_here(
    action: Any = ARMS, shape: tuple[int, ...] = (1, FEATURES), network: str = "flat", **options: Any
) -> LinUCBAgent:
    config = LinUCBConfig(**options)
    built = replace(network_config(network, shape, action, network_class=LinUCBNetwork), agent=config)
    made: Any = make_network(built, torch.Generator().manual_seed(1))
    return LinUCBAgent(config, made)


def batch_here(seed: int = 0, columns: int = COLUMNS) -> Batch:
    """Random pulls. Every third step is not used."""
    generator = torch.Generator().manual_seed(seed)
    no = torch.zeros(ROWS, columns, dtype=torch.bool)
    used = (torch.arange(ROWS * columns) % 3 > 0).view(ROWS, columns)
    return Batch(
        observations=torch.randn((ROWS + 1, columns, 1, FEATURES), generator=generator),
        actions=torch.randint(ARMS, (ROWS, columns), generator=generator),
        rewards=torch.randn((ROWS, columns), generator=generator),
        terminated=no,
        reset=~used,
        action_used=used,
        acting={},
        is_replay=no[0],
        source=torch.zeros(columns, dtype=torch.int64),
    )


def contexts_of(batch: Batch) -> Tensor:
    observed = batch.observations[:-1].flatten(2)
    return torch.cat([observed, torch.ones(*observed.shape[:2], 1)], -1)[batch.action_used].double()


def numbers_of(agent: LinUCBAgent) -> dict[str, Tensor]:
    state = agent.state_dict()
    return {**state["modules"]["network"], **state["numbers"]["sums"]}


def test_updates_sum_the_pulls_that_were_used_with_a_constant_feature() -> None:
    agent, batches = agent_here(ridge=0.5), [batch_here(seed) for seed in range(2)]
    for batch in batches:
        agent.learn(batch, 0.0)
    contexts = torch.cat([contexts_of(batch) for batch in batches])
    arms, rewards = (
        torch.cat([getattr(batch, name)[batch.action_used] for batch in batches]) for name in ("actions", "rewards")
    )
    theta, inverse = solved(sums_of(contexts, arms, rewards.double(), ARMS), 0.5)
    torch.testing.assert_close(agent.network.theta, theta.float())
    torch.testing.assert_close(agent.network.inverse, inverse.float())
    assert agent.take_skip_reasons() == [None, None]
    assert agent.take_skip_reasons() == []


def test_before_the_first_update_all_arms_are_worth_nothing_and_uncertain() -> None:
    output = agent_here(ridge=4.0).network(torch.tensor([[[3.0, 0.0]]]))
    torch.testing.assert_close(output.q, torch.zeros(1, ARMS))
    torch.testing.assert_close(output.widths, torch.full((1, ARMS), (10 / 4) ** 0.5))


def test_metrics_are_those_of_the_estimates_before_the_update() -> None:
    agent, batch = agent_here(), batch_here()
    found = agent.learn(batch, 0.0).scalars
    rewards = batch.rewards[batch.action_used]
    torch.testing.assert_close(found["bandit/reward"], rewards.mean())
    torch.testing.assert_close(found["bandit/squared_error"], rewards.square().mean())
    torch.testing.assert_close(found["bandit/width"], contexts_of(batch).norm(dim=-1).mean().float())


@pytest.mark.parametrize(("name", "place"), [("rewards", (1, 2)), ("observations", (ROWS, 0))])
def test_a_number_that_is_not_finite_skips_the_update(name: str, place: tuple[int, int]) -> None:
    agent, batch = agent_here(), batch_here()
    agent.learn(batch, 0.0)
    before = {key: tensor.clone() for key, tensor in numbers_of(agent).items()}
    getattr(batch, name)[place] = math.nan
    agent.learn(batch, 0.0)
    assert agent.take_skip_reasons() == [None, name]
    assert same(numbers_of(agent), before)


def test_contexts_that_are_too_large_for_the_ridge_skip_the_update() -> None:
    """Two contexts of 1e12 along one line: beside 1e24 a ridge of 1 is lost, and A is singular."""
    agent, batch = agent_here(), batch_here()
    agent.learn(batch, 0.0)
    before = {key: tensor.clone() for key, tensor in numbers_of(agent).items()}
    agent.learn(replace(batch, observations=torch.full_like(batch.observations, 1e12)), 0.0)
    assert agent.take_skip_reasons() == [None, "inverse matrices"]
    assert same(numbers_of(agent), before)


def test_parts_of_a_batch_give_the_sums_of_the_whole() -> None:
    whole = batch_here(columns=2 * COLUMNS)
    alone = agent_here()
    alone.learn(whole, 0.0)

    def learner(group: LearnerGroup) -> tuple[dict[str, Tensor], list[str | None]]:
        agent = agent_here()
        agent.join(group)
        part = whole.take_columns(torch.arange(group.rank * COLUMNS, (group.rank + 1) * COLUMNS))
        agent.learn(part, 0.0)
        part.rewards[0, 0] = math.nan if group.rank else 0.0
        agent.learn(part, 0.0)
        return numbers_of(agent), agent.take_skip_reasons()

    (first, skipped), (second, reasons) = together(2, learner)
    assert same(first, second)
    assert (skipped, reasons) == ([None, "the sums of all learners"], [None, "rewards"])
    for key, wanted in numbers_of(alone).items():
        torch.testing.assert_close(first[key], wanted, msg=lambda text, key=key: f"{key}: {text}")


def infer_from(estimates: list[float], widths: list[float], count: int = 1) -> NetworkOutput:
    output = LinUCBOutput(torch.tensor([estimates] * count), torch.tensor([widths] * count))
    return NetworkOutput(output, torch.zeros(count, FEATURES))


def test_an_arm_that_is_not_known_is_tried_in_training_alone() -> None:
    network = agent_here(alpha=2.0).network
    numbers = network.exploration(torch.arange(1), 1)
    rather, very = ([0.1, 0.1, uncertain] for uncertain in (0.8, 9.0))
    for widths, alpha, wanted in ((rather, numbers, 2), (very, numbers, 2), (rather, numbers / 2, 0), (very, None, 0)):
        assert network.choose(infer_from([1.0, 0.9, 0.0], widths), None, alpha).actions.tolist() == [wanted]
    assert network.choose(infer_from([1.0, 0.9, 0.0], very), None, numbers, greedy=True).actions.tolist() == [0]


def test_thompson_sampling_takes_an_arm_as_often_as_it_may_be_the_best() -> None:
    """The difference of two estimates is N(1, 3^2 + 4^2) here: it is above 0 with probability 0.579."""
    network, count = agent_here(2, thompson=True).network, 20_000
    exploration, generator = torch.ones(count, 1), torch.Generator().manual_seed(0)
    chosen = network.choose(infer_from([1.0, 0.0], [3.0, 4.0], count), generator, exploration)
    assert (chosen.actions == 0).float().mean().item() == pytest.approx(0.579, abs=0.015)


@pytest.mark.parametrize("thompson", [False, True])
def test_an_illegal_arm_is_never_chosen(thompson: bool) -> None:
    network = agent_here(alpha=1e6, thompson=thompson).network
    output = network.heads(1e4 * torch.randn(64, FEATURES), torch.tensor([[0, 1, 0]], dtype=torch.uint8).expand(64, ARMS))
    assert (output.q[:, [0, 2]] == ILLEGAL_VALUE).all()
    chosen = network.choose(NetworkOutput(output, torch.zeros(64, FEATURES)), None, network.exploration(torch.arange(64), 64))
    assert (chosen.actions == 1).all()
    assert (network.best_actions(output) == 1).all()


@pytest.mark.parametrize("action", [MultiDiscrete((2, 2)), Box((-1.0,), (1.0,))])
def test_actions_that_are_not_one_choice_are_refused(action: Any) -> None:
    with pytest.raises(ValueError, match="^env: wanted one choice among actions with agent linucb, got "):
        agent_here(action)


def test_more_features_than_can_be_inverted_are_refused() -> None:
    with pytest.raises(
        ValueError, match="^network: wanted at most 1,671 features for 6 actions with agent linucb, got 7,056; "
    ):
        agent_here(Discrete(6), (1, 84, 84))


@pytest.mark.parametrize("name", ["alpha", "ridge"])
def test_settings_have_bounds(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: wanted "):
        LinUCBConfig(**{name: -1.0})
