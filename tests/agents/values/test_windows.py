"""Windows at every row of a trajectory, and the initial errors that the values of acting give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.values.windows import behind, initial_errors, windows_of_rows
from tests.agents.support import each_golden_case
from tests.agents.values.test_q_learning import F64, exact
from tests.support import golden

APEX = [case for case in golden("apex.json") if "priorities" in case["outputs"]]


def flags(part: dict[str, Any], *names: str) -> list[torch.Tensor]:
    return [torch.tensor(part[name], dtype=torch.bool) for name in names]


@each_golden_case("nstep.json")
def test_each_row_has_its_own_window(case: dict[str, Any]) -> None:
    wanted = case["outputs"]
    rewards, terminated, used = *exact(case["inputs"], "rewards"), *flags(case["inputs"], "terminated", "action_used")
    got = windows_of_rows(rewards, terminated, used, case["n"], case["gamma"])
    torch.testing.assert_close(got.returns, torch.tensor(wanted["returns"], dtype=F64))
    torch.testing.assert_close(got.discounts, torch.tensor(wanted["discounts"], dtype=F64))
    assert got.rows.tolist() == wanted["steps"]
    rows = torch.arange(case["T"] + 1).unsqueeze(-1).expand(-1, case["B"])
    assert behind(rows, got).tolist() == wanted["bootstrap_rows"]


@pytest.mark.parametrize("case", APEX, ids=lambda case: case["name"])
def test_acting_gives_initial_errors(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], torch.tensor(case["outputs"]["priorities_from_T_rows"], dtype=F64)
    rewards, q, q_max = exact(given, "rewards", "behaviour_q", "behaviour_q_max")
    terminated, used = flags(given, "terminated", "action_used")
    errors = initial_errors(rewards, terminated, used, q, q_max, steps=case["n"], gamma=case["gamma"])
    priorities = torch.where(used, errors + case["epsilon"], 0.0)
    largest = priorities.nan_to_num(0.0).amax(0)
    unknown = torch.where(largest > 0, largest, torch.tensor(case["max_priority"], dtype=F64)).expand_as(priorities)
    assert priorities.isnan().any()
    torch.testing.assert_close(torch.where(priorities.isnan(), unknown, priorities), wanted)
