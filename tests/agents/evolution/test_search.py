"""The formulas of ES and CEM against recorded cases, and where they must not move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.evolution.search import best_members, centred_ranks, cross_entropy, evolution_gradient
from tests.agents.support import each_golden_case


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(got, dtype=torch.float64), exact(wanted), rtol=1e-10, atol=1e-10)


def noise_of(case: dict[str, Any]) -> list[Tensor]:
    table, dim = exact(case["inputs"]["table"]), case["dim"]
    return [table[index : index + dim] for index in case["inputs"]["indices"]]


@each_golden_case("es.json")
def test_the_gradient_is_that_of_the_recorded_cases(case: dict[str, Any]) -> None:
    outputs = case["outputs"]
    returns = exact(case["inputs"].get("returns", outputs.get("returns")))
    weights = centred_ranks(returns)
    assert_same(weights, outputs["weights"])
    gradient = evolution_gradient(weights, noise_of(case), case["sigma"])
    assert_same(gradient, outputs["gradient"])
    theta = exact(case["inputs"]["theta"])
    assert_same(theta + case["learning_rate"] * (gradient - case["weight_decay"] * theta), outputs["theta_after_sgd"])
    if "gradient_of_raw_returns" in outputs:
        raw = evolution_gradient(returns, noise_of(case), case["sigma"])
        assert_same(raw, outputs["gradient_of_raw_returns"])


def test_equal_returns_take_no_step_and_a_few_of_them_share_their_rank() -> None:
    assert not centred_ranks(torch.full((3, 2), 7.0)).any()
    assert centred_ranks(torch.tensor([1.0, 5.0, 5.0, 9.0, 5.0])).tolist() == [-0.5, 0.0, 0.0, 0.5, 0.0]


def test_ranks_do_not_depend_on_the_size_of_the_returns() -> None:
    returns = torch.tensor([[3.0, -1.0], [2.0, 1e30]])
    assert centred_ranks(returns).equal(centred_ranks(torch.tensor([[2.0, 0.0], [1.0, 3.0]])))


def test_ranks_of_single_precision_are_exact() -> None:
    assert centred_ranks(torch.arange(4, dtype=torch.float32)).tolist() == pytest.approx([-0.5, -1 / 6, 1 / 6, 0.5], abs=1e-15)


@each_golden_case("cem.json")
def test_the_distribution_moves_as_in_the_recorded_cases(case: dict[str, Any]) -> None:
    inputs, outputs = case["inputs"], case["outputs"]
    mean, std, normals = (exact(inputs[name]) for name in ("mean", "std", "normals"))
    candidates = mean + std * normals
    assert_same(candidates, outputs["candidates"])
    chosen = best_members(exact(inputs["returns"]), case["elites"])
    assert chosen == outputs["elite_indices"]
    options = {name: case[name] for name in ("smoothing", "extra_variance")}
    mean, std = cross_entropy([candidates[index] for index in chosen], mean, std, **options)
    assert_same(mean, outputs["mean_after"])
    assert_same(std, outputs["std_after"])
