"""Updates of the agents that learn from recordings."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agents import AGENTS
from agents.base import Agent
from agents.bcq.agent import BCQAgent, BCQConfig
from agents.bcq.network import BCQNetwork, BCQOutput, allowed_choices
from agents.networks.actor_critic import RAW_ACTION, PolicyNetwork
from agents.networks.base import NetworkConfig, NetworkOutput, make_network
from agents.networks.settings import NetworkSettings
from agents.returns.gae import advantages_of
from tests.agents.dqn.test_agent import A as VALUES
from tests.agents.dqn.test_agent import batch_of
from tests.agents.support import A, B, T, random_batch, with_nan, with_other_unused_rows
from tests.support import same
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

BOX = Box((-1.0, -1.0), (1.0, 1.0))


def agent_of(name: str, action: ActionSpace | None = None, network: dict[str, Any] | None = None, **own: Any) -> Agent:
    kind: Any = AGENTS[name]
    config = kind.config_class(**{"lr": 1e-2, "lr_end_value": 1e-2, **own})
    settings = NetworkSettings("mlp", hidden_sizes="16", **(network or {}))
    shape = (1, 5) if name == "bcq" else (2, 6)
    described = NetworkConfig(
        settings, shape, action or Discrete(VALUES if name == "bcq" else A), kind.network_class, agent=config
    )
    agent: Agent = kind(config, make_network(described, torch.Generator().manual_seed(1)), ("queue",))
    return agent


def weights(agent: Agent) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}


@pytest.mark.parametrize("name", ["bc", "marwil"])
def test_unused_rows_change_nothing(name: str) -> None:
    one, other = agent_of(name), agent_of(name)
    one.learn(random_batch(), 0.0)
    other.learn(with_other_unused_rows(random_batch()), 0.0)
    assert same(one.state_dict(), other.state_dict())


def test_cloning_makes_recorded_actions_likely() -> None:
    agent, batch = agent_of("bc", lr=0.05, lr_end_value=0.05), random_batch()
    for _ in range(300):
        scalars = agent.learn(batch, 0.0).scalars
    assert float(scalars["losses/accuracy"]) == 1.0
    assert float(scalars["losses/cloning_loss"]) < 0.05


def test_an_entropy_bonus_keeps_the_policy_unsure() -> None:
    entropies = []
    for weight in (0.0, 1.0):
        agent = agent_of("bc", entropy_loss_weight=weight)
        for _ in range(100):
            scalars = agent.learn(random_batch(), 0.0).scalars
        entropies.append(float(scalars["losses/entropy"]))
    assert entropies[0] < entropies[1]


def test_a_squashed_policy_clones_the_drawn_values() -> None:
    assert set(PolicyNetwork.acting(_described(BOX, "squashed_gaussian")).fields) == {RAW_ACTION}
    assert not PolicyNetwork.acting(_described(BOX, "gaussian")).fields
    agent = agent_of("bc", BOX, {"action_distribution": "squashed_gaussian", "log_std": "network"}, lr=0.05, lr_end_value=0.05)
    batch = random_batch()
    drawn = torch.full((*batch.action_used.shape, 2), 0.7)
    batch = replace(batch, actions=torch.zeros_like(drawn), acting={RAW_ACTION: drawn})
    for _ in range(200):
        agent.learn(batch, 0.0)
    policy = agent.network(batch.observations.flatten(0, 1)).policy
    torch.testing.assert_close(policy[:, :2].mean(), torch.tensor(0.7), atol=0.05, rtol=0.0)


def _described(action: ActionSpace, distribution: str) -> NetworkConfig:
    return NetworkConfig(NetworkSettings("mlp", action_distribution=distribution), (1, 5), action, PolicyNetwork)


def test_marwil_prefers_actions_that_turned_out_well() -> None:
    """With beta 0 it clones all of them alike."""
    batch = random_batch()
    rewarded = batch.actions == 1
    batch = replace(batch, rewards=torch.where(rewarded, 1.0, -1.0), terminated=torch.ones_like(batch.terminated))
    liked = []
    for beta in (0.0, 2.0):
        agent = agent_of("marwil", advantage_weight=beta, advantage_scale_rate=0.5)
        for _ in range(20):
            agent.learn(batch, 0.0)
        policy = agent.network(batch.observations.flatten(0, 1)).policy.softmax(-1)
        liked.append(float(policy[:, 1].mean()))
    assert liked[1] > liked[0] + 0.05


def test_the_scale_of_marwil_is_part_of_its_state_and_of_a_step() -> None:
    """It moves before it is used. A refused step leaves it, and so does a batch without a used step."""
    agent: Any = agent_of("marwil", advantage_scale_rate=0.5)
    scale = agent.squared_scale.clone()
    agent.learn(random_batch(), 0.0)
    assert float(agent.squared_scale) < 0.6 * float(scale)
    state = copy.deepcopy(agent.state_dict())
    before = agent.squared_scale.clone()
    agent.learn(with_nan(random_batch(), "rewards"), 0.0)
    assert torch.equal(agent.squared_scale, before)
    unused: Any = agent_of("marwil", advantage_scale_rate=0.5)
    unused.learn(replace(random_batch(), action_used=torch.zeros(T, B, dtype=torch.bool)), 0.0)
    assert torch.equal(unused.squared_scale, scale)
    other: Any = agent_of("marwil", advantage_scale_rate=0.5)
    other.check_state_dict(state, load_optimizer=True)
    other.load_state_dict(state, load_optimizer=True)
    for each in (agent, other):
        each.learn(random_batch(1), 0.0)
    assert same(agent.state_dict(), other.state_dict())
    older = {**state, "numbers": {}}
    other.load_state_dict(older, load_optimizer=False)


def test_marwil_weighs_by_the_scale_of_the_batch_itself() -> None:
    agent: Any = agent_of("marwil", advantage_scale_rate=1.0, weight_limit=1e6, clip_rewards=False)
    batch = random_batch()
    values = agent.network(batch.observations.flatten(0, 1)).values.detach().unflatten(0, (T + 1, B))
    advantages, _ = advantages_of(batch, values, agent.config.gamma, 1.0)
    used = batch.action_used
    scaled = advantages[used] / advantages[used].square().mean().sqrt()
    scalars = agent.learn(batch, 0.0).scalars
    torch.testing.assert_close(scalars["losses/mean_weight"], scaled.exp().mean())


def test_bcq_chooses_among_recorded_actions_alone() -> None:
    agent = agent_of("bcq", Discrete(3), threshold=0.5)
    network = agent.network
    assert isinstance(network, BCQNetwork)
    output = BCQOutput(torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[0.0, -3.0, -0.1]]))
    assert network.best_actions(output).tolist() == [2]
    inferred = NetworkOutput(output, torch.zeros(1, 16))
    assert network.choose(inferred, None, greedy=True).actions.tolist() == [2]
    explored = [network.choose(inferred, None, torch.ones(1, 1)).actions.item() for _ in range(50)]
    assert set(explored) == {0, 2}
    assert network.choose(inferred, None).fields == network.acting(network.config).fields == {}


@pytest.mark.parametrize("action", [Discrete(VALUES), MultiDiscrete((VALUES, 2))])
def test_bcq_learns_values_and_recorded_actions(action: ActionSpace) -> None:
    """Every window ends an episode, so the value of an action is its reward."""
    agent, batch = agent_of("bcq", action, batches_at_once=1), batch_of(count=16)
    actions = batch.actions if isinstance(action, Discrete) else torch.stack([batch.actions, batch.actions % 2], -1)
    batch = replace(batch, actions=actions, terminated=torch.ones_like(batch.terminated))
    for _ in range(400):
        scalars = agent.learn(batch, 0.0).scalars
    assert float(scalars["losses/value_loss"]) < 1e-3
    assert float(scalars["losses/accuracy"]) == 1.0
    assert 0 < float(scalars["losses/allowed"]) < 1


def test_an_update_of_bcq_descends_the_loss_of_its_formula() -> None:
    agent, batch = agent_of("bcq", batches_at_once=1, n_step=2, threshold=0.6, logit_penalty=0.5), batch_of(steps=2, count=8)
    assert isinstance(agent, BCQAgent)
    with torch.no_grad():
        agent.network.behaviour_head.weight.mul_(200)  # or every action would be allowed
    reference, config = copy.deepcopy(agent.network), agent.config
    ends = torch.tensor([1 if ended else 2 for ended in batch.terminated[0]])
    following = reference(batch.observations[ends, torch.arange(8)])
    allowed = allowed_choices(following.behaviour, (VALUES,), config.threshold)
    assert 0 < allowed.float().mean() < 1
    best = following.q.masked_fill(~allowed, -1e9).argmax(-1, keepdim=True)
    returns = batch.rewards[0] + torch.where(ends == 2, config.gamma * batch.rewards[1], 0.0)
    left = torch.where(ends == 2, config.gamma**2 * (~batch.terminated[1]).float(), 0.0)
    targets = (returns + left * following.q.gather(1, best).squeeze(1)).detach()
    now = reference(batch.observations[0])
    errors = targets - now.q.gather(1, batch.actions[0][:, None]).squeeze(1)
    huber = torch.where(errors.abs() < 1, 0.5 * errors**2, errors.abs() - 0.5).mean()
    cloned = torch.nn.functional.cross_entropy(now.behaviour, batch.actions[0])
    (huber + cloned + 0.5 * now.behaviour.square().mean()).backward()
    agent.stepper.optimizer = torch.optim.SGD(agent.network.parameters(), lr=1.0)
    agent.stepper.guard._optimizer = agent.stepper.optimizer
    before = weights(agent)
    agent.learn(batch, 0.0)
    for name, parameter in reference.named_parameters():
        step = before[name] - agent.network.state_dict()[name]
        torch.testing.assert_close(step / agent.config.lr, parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("name", "action", "network", "message"),
    [
        ("bc", Discrete(3), {"separate_value": True}, "^separate_value: wanted False with agent bc, "),
        ("bcq", Discrete(3), {"core": "lstm"}, "^core: wanted none with agent bcq, got lstm$"),
        ("bcq", BOX, {}, "^agent: wanted choices among actions"),
    ],
)
def test_what_an_agent_cannot_learn_is_refused(name: str, action: ActionSpace, network: Any, message: str) -> None:
    kind: Any = AGENTS[name]
    config = kind.config_class()
    described = NetworkConfig(NetworkSettings("mlp", **network), (1, 5), action, kind.network_class, agent=config)
    with pytest.raises(ValueError, match=message):
        kind.check(config, described)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, 2.0])
def test_thresholds_that_allow_no_action_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"^threshold: wanted a number in \[0, 1\), got "):
        BCQConfig(threshold=threshold)
