"""Generalised advantage estimation against recorded values and a slow double sum."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from agents.returns.advantages import normalised
from agents.returns.gae import Advantages, gae
from tests.support import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "golden"


def golden_cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in json.loads((GOLDEN / name).read_text())["cases"]]


def estimate(case: dict[str, Any], lambda_: float) -> Advantages:
    inputs = {name: torch.tensor(values) for name, values in case["inputs"].items()}
    return gae(
        rewards=inputs["rewards"],
        discounts=case["gamma"] * (~inputs["terminated"]).float(),
        values=inputs["values"],
        bootstrap_value=inputs["bootstrap_value"],
        lambda_=lambda_,
        mask=inputs["action_used"],
    )


@pytest.mark.parametrize("case", golden_cases("gae.json"))
def test_advantages_and_targets_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    found = estimate(case, case["lambda"])
    wanted = {name: torch.tensor(values) for name, values in case["outputs"].items()}
    torch.testing.assert_close(found.advantages, wanted["advantages"], rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(found.targets, wanted["value_targets"], rtol=2e-5, atol=1e-5)
    used = torch.tensor(case["inputs"]["action_used"])
    torch.testing.assert_close(normalised(found.advantages, used), wanted["advantages_normalized"], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("case", golden_cases("a2c.json"))
def test_with_lambda_1_the_target_is_the_longest_n_step_return(case: dict[str, Any]) -> None:
    found, outputs = estimate(case, 1.0), case["outputs"]
    torch.testing.assert_close(found.advantages, torch.tensor(outputs["advantages"]), rtol=2e-5, atol=1e-5)
    longest = outputs["n_step_returns"][str(case["T"])]
    torch.testing.assert_close(found.targets, torch.tensor(longest), rtol=2e-5, atol=1e-5)


def test_the_recursion_equals_the_double_sum_of_equation_16() -> None:
    """Float64: for each step, the sum over later steps of (gamma lambda)^l delta_{t+l} that stops at a termination."""
    generator, gamma, lambda_ = np.random.default_rng(1), 0.9, 0.8
    rewards, values, last = generator.normal(size=(9, 2)), generator.normal(size=(9, 2)), generator.normal(size=2)
    terminated = generator.random((9, 2)) < 0.2
    discounts = gamma * ~terminated
    deltas = rewards + discounts * np.concatenate([values[1:], last[None]]) - values
    wanted = np.zeros((9, 2))
    for t in range(9):
        weight = np.ones(2)
        for k in range(t, 9):
            wanted[t] += weight * deltas[k]
            weight *= discounts[k] * lambda_
    given = {"rewards": rewards, "discounts": discounts, "values": values, "bootstrap_value": last}
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    found = gae(**tensors, lambda_=lambda_, mask=torch.ones(9, 2, dtype=torch.bool))
    np.testing.assert_allclose(found.advantages.numpy(), wanted, rtol=1e-12, atol=1e-12)


def test_a_reward_of_an_ignored_action_may_be_anything() -> None:
    rewards, values = torch.tensor([[1.0], [float("nan")], [1.0]]), torch.zeros(3, 1)
    mask = torch.tensor([[True], [False], [True]])
    found = gae(
        rewards=rewards, discounts=torch.ones(3, 1), values=values, bootstrap_value=torch.zeros(1), lambda_=1.0, mask=mask
    )
    assert found.advantages.flatten().tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"discounts": torch.ones(3)}, "discounts"),
        ({"values": torch.ones(2, 2)}, "values"),
        ({"mask": torch.ones(3, 1, dtype=torch.bool)}, "mask"),
        ({"bootstrap_value": torch.ones(3)}, "bootstrap_value"),
        ({"rewards": torch.ones(3)}, "rewards"),
        ({"lambda_": 1.5}, "lambda_"),
    ],
)
def test_wrong_shapes_and_lambdas_are_refused(changed: dict[str, Any], name: str) -> None:
    rows = torch.ones(3, 2)
    good: dict[str, Any] = {
        "rewards": rows,
        "discounts": rows,
        "values": rows,
        "bootstrap_value": torch.ones(2),
        "lambda_": 0.9,
        "mask": rows.bool(),
    }
    with pytest.raises(ValueError, match=f"^{name}: wanted .*, got"):
        gae(**{**good, **changed})
