"""SQN: recorded targets and policies, Retrace's targets by hand, the temperature, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.acting import BEHAVIOUR_LOG_PROB
from agents.networks.base import NetworkConfig, NetworkOutput, make_network
from agents.networks.settings import NetworkSettings
from agents.returns.nstep import Transitions, transitions
from agents.sqn.agent import SQNAgent, SQNConfig
from agents.sqn.network import SoftQNetwork
from agents.values.soft import expected_soft_values, soft_values
from tests.agents.dqn.test_agent import A, batch_of
from tests.support import golden
from wrappers.spaces import ActionSpace, Box, Discrete, MultiDiscrete

F64 = torch.float64
SQN = [case for case in golden("soft_q.json") if case["name"].startswith("sqn")]


def agent_of(action: ActionSpace | None = None, *, core: str = "none", **settings: Any) -> SQNAgent:
    config = SQNConfig(**{"batches_at_once": 1, "gamma": 0.9, **settings})
    network = NetworkSettings("mlp", hidden_sizes="16", separate_value=True, core=core)
    described = NetworkConfig(network, (1, 5), action or Discrete(A), SoftQNetwork, agent=config)
    SQNAgent.check(config, described)
    return SQNAgent(config, make_network(described, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("case", SQN, ids=itemgetter("name"))
def test_values_targets_and_policy_are_the_recorded_ones(case: dict[str, Any], dtype: torch.dtype) -> None:
    given = {name: torch.tensor(value, dtype=dtype) for name, value in case["inputs"].items()}
    wanted = {name: torch.tensor(value, dtype=dtype) for name, value in case["outputs"].items()}
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == F64 else {"rtol": 2e-6, "atol": 2e-6}
    alpha, counts = case["alpha"], (case["A"],)
    smaller = torch.minimum(given["next_q1_target"], given["next_q2_target"])
    values = soft_values(smaller, alpha, counts)
    torch.testing.assert_close(values, wanted["next_values"], **tolerance)
    torch.testing.assert_close(given["returns"] + given["discounts"] * values, wanted["targets"], **tolerance)
    own = expected_soft_values(smaller, smaller / alpha, alpha, counts)
    torch.testing.assert_close(own, wanted["next_values_by_expectation"], **tolerance)
    policy = torch.softmax(torch.minimum(given["next_q1_online"], given["next_q2_online"]) / alpha, -1)
    torch.testing.assert_close(policy, wanted["policy"], rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=1e-6)


@pytest.mark.parametrize("case", SQN, ids=itemgetter("name"))
def test_acting_and_the_target_take_the_smaller_value_of_each_action(case: dict[str, Any]) -> None:
    """The heads give the recorded values, so that the network's policy and the agent's target are the recorded ones."""
    agent = agent_of(Discrete(case["A"]), temperature=case["alpha"])
    given = {name: torch.tensor(value) for name, value in case["inputs"].items()}
    for network, kind in ((agent.network, "online"), (agent.target.network, "target")):
        network.first_head, network.second_head = (Recorded(given[f"next_q{index}_{kind}"]) for index in (1, 2))
    observations = torch.zeros(case["M"], 1, 5)
    policy = agent.network(observations).policy.softmax(-1)
    torch.testing.assert_close(policy, torch.tensor(case["outputs"]["policy"]), rtol=1e-4, atol=1e-6)
    ones = torch.ones(case["M"])
    part = Transitions(observations, ones.long() * 0, given["returns"], given["discounts"], observations, ones)
    targets = agent.targets(part, agent.stepper)
    torch.testing.assert_close(targets, torch.tensor(case["outputs"]["targets"]), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("action", [Discrete(A), MultiDiscrete((2, 3))], ids=["one", "several"])
def test_a_small_temperature_takes_no_illegal_action(action: ActionSpace) -> None:
    """Q / alpha of the legal actions is far below the logit of an illegal one."""
    agent = agent_of(action, temperature=1e-6)
    network, count = agent.network, 4 if isinstance(action, Discrete) else 5
    values = torch.arange(count) - 300.0  # the last action of each component is the best
    network.first_head = network.second_head = Recorded(values.expand(1, count))
    mask = torch.ones(1, count)
    mask[:, -1] = 0
    found = network.heads(torch.zeros(1, network.feature_count), mask)
    best = [count - 2] if isinstance(action, Discrete) else [1, 1]
    for greedy in (False, True):
        taken = network.choose(NetworkOutput(found, torch.zeros(1)), torch.Generator().manual_seed(0), greedy=greedy)
        assert taken.actions.flatten().tolist() == best
    wanted = found.q[:, best[0]] if len(best) == 1 else found.q[:, [1, 3]].mean(-1)
    torch.testing.assert_close(expected_soft_values(found.q, found.policy, 1e-6, network.counts), wanted)


class Recorded(torch.nn.Module):
    """Gives the same values, whatever the features are."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, features: Tensor) -> Tensor:
        return self.values


@pytest.mark.parametrize("action", [Discrete(A), MultiDiscrete((A, A))], ids=["one", "several"])
def test_retraced_targets_are_those_of_the_recursion(action: ActionSpace) -> None:
    agent = agent_of(action, n_step=3, retrace_lambda=0.8, temperature=0.5)
    for weights in agent.target.network.parameters():
        weights.add_(0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(2)))
    batch = batch_of(steps=3)
    actions = batch.actions if isinstance(action, Discrete) else torch.stack([batch.actions, batch.actions.flip(1)], -1)
    log_mu = torch.randn(batch.rewards.shape, generator=torch.Generator().manual_seed(3)) - 2
    batch = replace(batch, actions=actions, acting={BEHAVIOUR_LOG_PROB: log_mu})
    alpha, choices = 0.5, actions.view(*actions.shape[:2], -1)
    with torch.no_grad():
        q, pi = ([each(row) for row in batch.observations] for each in (agent.target.network, agent.network))

    def by_hand(row: int, column: int) -> float:
        """y of one row."""
        if bool(batch.terminated[row, column]):
            return float(batch.rewards[row, column])
        smaller, logits = (rows[row + 1] for rows in (q, pi))
        values, logs = (part[column].view(-1, A).double() for part in (smaller.q, logits.policy))
        log_pi = logs.log_softmax(-1)
        following = float((log_pi.exp() * (values - alpha * log_pi)).sum(-1).mean())
        if row + 1 < len(batch.rewards):
            chosen = choices[row + 1, column].unsqueeze(-1)
            ratio = float(log_pi.gather(-1, chosen).sum() - log_mu[row + 1, column])
            trace = 0.8 * min(1.0, torch.tensor(ratio).exp().item())
            following += trace * (by_hand(row + 1, column) - float(values.gather(-1, chosen).mean()))
        return float(batch.rewards[row, column]) + 0.9 * following

    wanted = torch.tensor([by_hand(0, column) for column in range(batch.rewards.shape[1])])
    torch.testing.assert_close(agent.traced_targets(batch, agent.stepper), wanted, rtol=1e-5, atol=1e-5)


def test_an_update_descends_half_the_squared_errors_of_both() -> None:
    agent, batch = agent_of(), batch_of()
    (part,) = transitions(batch, 0.9).split(1)
    targets = agent.targets(part, agent.stepper)
    found = agent.losses(part, targets)
    twins = agent.network(part.observations).twins
    taken = twins[torch.arange(len(targets)), :, part.actions]  # [N, 2]
    wanted = 0.5 * (targets.unsqueeze(-1) - taken).square().mean(0).sum()
    torch.testing.assert_close(found.terms["value_loss"].value, wanted)
    assert found.terms.keys() == {"value_loss"}
    before = agent.network.log_alpha.clone()
    agent.learn(batch, 0.0)
    assert torch.equal(agent.network.log_alpha, before)


@pytest.mark.parametrize(("temperature", "grows"), [(1e-3, True), (1e3, False)])
def test_a_learned_temperature_follows_the_entropy(temperature: float, grows: bool) -> None:
    agent = agent_of(MultiDiscrete((2, 3)), temperature=temperature, learn_temperature=True, target_entropy_scale=0.5)
    batch = batch_of()
    agent.learn(replace(batch, actions=torch.zeros(*batch.rewards.shape, 2, dtype=torch.int64)), 0.0)
    assert (float(agent.network.temperature) > temperature) == grows


def test_masked_actions_are_never_drawn_and_the_best_one_is_taken_greedily() -> None:
    agent = agent_of()
    features, mask = torch.randn(200, agent.network.feature_count), torch.tensor([[1, 0, 1, 0]]).expand(200, -1)
    output = agent.network.heads(features, mask)
    inferred = NetworkOutput(output, features)
    drawn = agent.network.choose(inferred, None).actions
    assert set(drawn.tolist()) == {0, 2}
    best = agent.network.choose(inferred, None, greedy=True).actions
    assert torch.equal(best, output.twins.amin(1).argmax(-1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"action": Box((-1.0,), (1.0,))}, "agent: wanted choices among actions"),
        ({"core": "lstm"}, "core: wanted none with agent sqn, got lstm"),
        ({"retrace_lambda": 0.9}, "n_step: wanted 2 or more with --retrace_lambda"),
    ],
)
def test_what_it_cannot_learn_with_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        agent_of(**given)
