"""A2C's losses against recorded values, and its step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from agents.a2c.agent import A2CAgent, A2CConfig
from agents.distributions import make_distribution
from agents.losses import used_mean
from agents.networks.actor_critic import PolicyOutput
from replay.batch import Batch
from tests.agents.ppo.test_agent import acted_batch, make_network_here
from tests.agents.returns.test_gae import golden_cases
from tests.agents.test_distributions import distribution_of, parameters_of


@pytest.mark.parametrize("case", golden_cases("a2c.json"))
def test_losses_and_their_gradients_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    inputs = {name: torch.tensor(values) for name, values in case["inputs"].items()}
    agent = A2CAgent(replace(A2CConfig(), gamma=case["gamma"]), make_network_here())
    agent.network.distribution = distribution_of(case)
    policy = parameters_of(case, "target", torch.float32)
    policy = torch.cat([policy, policy[-1:]]).requires_grad_()  # row T has no action: its policy does not matter
    values = torch.cat([inputs["values"], inputs["bootstrap_value"][None]]).requires_grad_()
    rows, columns = inputs["rewards"].shape
    batch = Batch(
        observations=torch.zeros(rows + 1, columns, 1),
        reset=torch.zeros(rows, columns, dtype=torch.bool),
        acting={},
        is_replay=torch.zeros(columns, dtype=torch.bool),
        source=torch.zeros(columns, dtype=torch.int64),
        **{name: inputs[name] for name in ("actions", "rewards", "terminated", "action_used")},
    )
    terms, metrics, _ = agent.losses(batch, PolicyOutput(policy, values))
    outputs = case["outputs"]
    assert float(terms["policy_loss"].value.detach()) == pytest.approx(outputs["policy_loss_mean"], rel=2e-5, abs=1e-5)
    wanted = outputs["half_squared_value_loss_mean"]
    assert float(terms["value_loss"].value.detach()) == pytest.approx(wanted, rel=2e-5, abs=1e-5)
    assert float(metrics["losses/entropy"]) == pytest.approx(outputs["entropy_mean"], rel=2e-5, abs=1e-5)
    (of_values,) = torch.autograd.grad(terms["value_loss"].value, values)
    recorded = torch.tensor(outputs["grad_half_squared_value_loss_mean_wrt_values"])
    torch.testing.assert_close(of_values[:-1], recorded, rtol=2e-5, atol=1e-5)
    if "grad_policy_loss_wrt_target_logits" in outputs:
        (of_policy,) = torch.autograd.grad(terms["policy_loss"].value, policy)
        recorded = torch.tensor(outputs["grad_policy_loss_wrt_target_logits"])
        torch.testing.assert_close(of_policy[:-1], recorded, rtol=2e-5, atol=1e-5)


def test_an_update_takes_one_step_and_counts_no_others() -> None:
    network = make_network_here()
    agent = A2CAgent(A2CConfig(), network)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    updated = agent.learn(acted_batch(network), 0.0)
    assert updated.optimizer_steps is None
    assert all(not torch.equal(parameter, old) for parameter, old in zip(network.parameters(), before, strict=True))
    assert agent.take_skip_reasons() == [None]


def test_a_mean_over_no_step_is_zero() -> None:
    steps = torch.tensor([[float("nan"), 3.0], [1.0, float("inf")]])
    assert float(used_mean(steps, torch.zeros(2, 2, dtype=torch.bool))) == 0.0
    assert float(used_mean(steps, torch.tensor([[False, True], [True, False]]))) == 2.0
    assert float(used_mean(torch.tensor([2.0, 4.0]), None)) == 3.0


def test_the_penalty_on_means_out_of_bounds_is_off_by_default() -> None:
    assert A2CConfig().action_bound_loss_weight == 0.0
    assert make_distribution(make_network_here().config.action).excess(torch.zeros(1, 4)) is None
