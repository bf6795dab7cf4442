"""Targets and losses of Q-learning are those of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.dqn.errors import NStepTransitions, expected_targets
from agents.networks.q_network import QOutput
from agents.values.dueling import dueling
from agents.values.q_learning import (
    huber,
    munchausen_targets,
    q_targets,
    value_of,
    weighted_mean,
)
from tests.agents.support import each_golden_case
from tests.support import golden

F64 = torch.float64
MUNCHAUSEN = [case for case in golden("soft_q.json") if "munchausen" in case["name"]]


def exact(part: dict[str, Any], *names: str) -> list[torch.Tensor]:
    """The named arrays of a case in float64."""
    return [torch.tensor(part[name], dtype=F64) for name in names]


@each_golden_case("nstep.json")
def test_targets_bootstrap_from_the_row_behind_the_window(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    online, target = exact(given, "q_online", "q_target")
    returns, discounts, valid = exact(wanted, "returns", "discounts", "valid")
    rows = torch.tensor(wanted["bootstrap_rows"])
    columns = torch.arange(rows.shape[1]).expand_as(rows)
    target_output, online_output = (QOutput(values[rows, columns]) for values in (target, online))
    window, counts = NStepTransitions(torch.tensor(given["actions"]), returns, discounts), (target.shape[-1],)
    plain = expected_targets(window, target_output, target_output, counts) * valid
    double = expected_targets(window, target_output, online_output, counts) * valid
    torch.testing.assert_close(plain, torch.tensor(wanted["targets_max"], dtype=F64))
    torch.testing.assert_close(double, torch.tensor(wanted["targets_double"], dtype=F64))


@each_golden_case("nstep.json")
def test_the_loss_is_the_mean_over_windows_and_has_the_gradient_of_the_huber_loss(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    (online,) = exact(given, "q_online")
    online.requires_grad_()
    targets, valid = exact(wanted, "targets_double", "valid")
    taken = value_of(online[:-1], torch.tensor(given["actions"]))
    chosen = valid.bool()
    loss = weighted_mean(huber(targets[chosen] - taken[chosen]))
    assert float(loss.detach()) == pytest.approx(wanted["huber_mean_double"], abs=1e-10)
    loss.backward()
    torch.testing.assert_close(online.grad, torch.tensor(wanted["grad_huber_mean_wrt_q_online"], dtype=F64))


def test_weights_multiply_the_losses_and_not_their_number() -> None:
    losses, weights = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.5, 0.0])
    assert float(weighted_mean(losses, weights)) == pytest.approx(2 / 3)


def test_no_gradient_passes_through_a_target() -> None:
    values = torch.ones(2, requires_grad=True)
    assert not q_targets(torch.ones(2), torch.ones(2), values).requires_grad


@pytest.mark.parametrize("case", MUNCHAUSEN, ids=lambda case: case["name"])
def test_munchausen_adds_the_clipped_log_policy_and_bootstraps_softly(case: dict[str, Any]) -> None:
    rewards, discounts, values, following = exact(case["inputs"], "rewards", "discounts", "q_target", "next_q_target")
    actions = torch.tensor(case["inputs"]["actions"])
    options = {"temperature": case["tau"], "weight": case["alpha"], "lowest": case["l0"]}
    got = munchausen_targets(rewards, discounts, actions, values, following, **options)
    torch.testing.assert_close(got, torch.tensor(case["outputs"]["targets"], dtype=F64))


def test_an_illegal_action_adds_nothing_to_a_munchausen_target() -> None:
    values, actions = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    masked = torch.cat([values, torch.tensor([[-1e9]])], -1)
    options = {"temperature": 0.03, "weight": 0.9, "lowest": -1.0}
    wanted, got = (
        munchausen_targets(torch.ones(1), torch.ones(1), actions, each, each, **options) for each in (values, masked)
    )
    torch.testing.assert_close(got, wanted)


@each_golden_case("dueling.json")
def test_advantages_have_no_mean(case: dict[str, Any]) -> None:
    values, advantages, gradient = exact(case["inputs"], "values", "advantages", "output_gradient")
    values.requires_grad_()
    advantages.requires_grad_()
    combined = dueling(values, advantages)
    torch.testing.assert_close(combined.detach(), torch.tensor(case["outputs"]["combined"], dtype=F64))
    combined.backward(gradient)
    torch.testing.assert_close(values.grad, torch.tensor(case["outputs"]["grad_values"], dtype=F64))
    torch.testing.assert_close(advantages.grad, torch.tensor(case["outputs"]["grad_advantages"], dtype=F64))
