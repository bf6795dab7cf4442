"""The mathematics of LinUCB against recorded cases and numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.linucb.arms import ArmSums, estimates_and_widths, solved, sums_of
from tests.support import golden

CASES = {case["name"]: case for case in golden("linucb.json")}


def inputs_of(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = case["inputs"]
    contexts, queries = (
        torch.tensor(given[name], dtype=torch.float64).view(-1, case["dim"]) for name in ("contexts", "queries")
    )
    return (
        contexts,
        torch.tensor(given["arms"], dtype=torch.int64),
        torch.tensor(given["rewards"], dtype=torch.float64),
        queries,
    )


def sums_of_case(case: dict[str, Any]) -> ArmSums:
    contexts, arms, rewards, _ = inputs_of(case)
    return sums_of(contexts, arms, rewards, case["arms_count"])


@pytest.mark.parametrize("name", CASES)
def test_recorded_cases(name: str) -> None:
    case = CASES[name]
    queries, sums = inputs_of(case)[3], sums_of_case(case)
    theta, inverse = solved(sums, case["ridge"])
    estimates, widths = estimates_and_widths(queries, theta, inverse)
    scores = estimates + case["alpha"] * widths
    matrices = sums.matrices + case["ridge"] * torch.eye(case["dim"])
    found = {"matrices": matrices, "theta": theta, "estimates": estimates, "widths": widths, "scores": scores}
    for key, tensor in found.items():
        wanted = torch.tensor(case["outputs"][key], dtype=torch.float64)
        torch.testing.assert_close(tensor, wanted, rtol=1e-10, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")
    assert scores.argmax(-1).tolist() == case["outputs"]["chosen"]


def test_pulls_count_once_in_any_order_and_however_they_are_cut() -> None:
    case = CASES["ridge1"]
    contexts, arms, rewards, _ = inputs_of(case)
    order = torch.randperm(len(arms), generator=torch.Generator().manual_seed(0))
    parts = [sums_of(contexts[part], arms[part], rewards[part], case["arms_count"]) for part in (order[:4], order[4:])]
    for whole, first, second in zip(sums_of_case(case), *parts, strict=True):
        torch.testing.assert_close(first + second, whole)


def test_one_pull_by_hand() -> None:
    """With x = (3, 4), r = 2 and ridge 1: A = I + x x', and A^-1 x = x / (1 + |x|^2) = x / 26."""
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    theta, inverse = solved(sums_of(x, torch.tensor([0]), torch.tensor([2.0], dtype=torch.float64), 2), ridge=1.0)
    estimates, widths = estimates_and_widths(x, theta, inverse)
    torch.testing.assert_close(estimates, torch.tensor([[50 / 26, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(widths, torch.tensor([[(25 / 26) ** 0.5, 5.0]], dtype=torch.float64))


def test_rounding_makes_no_width_nan() -> None:
    inverse = torch.tensor([[[-1e-9]]])
    assert estimates_and_widths(torch.ones(1, 1), torch.ones(1, 1), inverse)[1].item() == 0.0
