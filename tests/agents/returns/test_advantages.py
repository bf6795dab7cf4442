"""Normalised advantages against recorded ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.returns.advantages import normalised
from tests.agents.support import each_golden_case


@each_golden_case("gae.json")
def test_recorded_cases(case: dict[str, Any]) -> None:
    advantages = torch.tensor(case["outputs"]["advantages"])
    used = torch.tensor(case["inputs"]["action_used"], dtype=torch.bool)
    wanted = torch.tensor(case["outputs"]["advantages_normalized"])
    torch.testing.assert_close(normalised(torch.where(used, advantages, 1e6), used), wanted, rtol=2e-5, atol=1e-5)


def test_one_step_and_no_step_have_advantage_zero() -> None:
    advantages, one, none = torch.full((2, 1), 3.0), torch.tensor([[True], [False]]), torch.zeros(2, 1, dtype=torch.bool)
    assert normalised(advantages, one).tolist() == normalised(advantages, none).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("value", [100.1, -37.3, 1.1])
def test_equal_advantages_become_zero(value: float) -> None:
    """Their mean in float32 differs from them, by as much as the standard deviation then is."""
    assert not normalised(torch.full((640, 1), value), torch.ones(640, 1, dtype=torch.bool)).any()


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"advantages: wanted \[2, 1\] as the mask, got \[1, 2\]"):
        normalised(torch.zeros(1, 2), torch.ones(2, 1, dtype=torch.bool))
