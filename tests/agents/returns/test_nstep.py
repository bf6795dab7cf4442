"""Returns of windows against golden vectors, at every start of stored trajectories with every kind of end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agents.returns.nstep import n_step
from tests.agents.support import each_golden_case, tensors


def windows(field: Tensor, n: int, fill: float = 0) -> Tensor:
    """The rows t to t + n - 1 of `[T, B]` for every t, `[n, T * B]`. Rows beyond the trajectory hold `fill`."""
    padded = pad(field.double(), (0, 0, 0, n - 1), value=fill)
    return torch.stack([padded[start : start + len(field)].flatten() for start in range(n)])


@each_golden_case("nstep.json")
def test_windows_have_the_golden_returns(case: dict[str, Any]) -> None:
    inputs, outputs, n = tensors(case["inputs"]), tensors(case["outputs"]), case["n"]
    rewards = windows(inputs["rewards"], n, fill=float("nan"))  # a row that does not count may hold anything
    terminated, used = (windows(inputs[name], n).bool() for name in ("terminated", "action_used"))
    found = n_step(rewards, terminated, used, case["gamma"])
    assert found.rows.tolist() == outputs["steps"].flatten().tolist()
    torch.testing.assert_close(found.returns, outputs["returns"].double().flatten(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.discounts, outputs["discounts"].double().flatten(), rtol=0, atol=1e-6)


def test_one_row_is_a_reward_and_a_discount() -> None:
    found = n_step(torch.tensor([[1.0, 2.0]]), torch.tensor([[False, True]]), torch.ones(1, 2, dtype=torch.bool), 0.9)
    assert found.returns.tolist() == [1, 2]
    torch.testing.assert_close(found.discounts, torch.tensor([0.9, 0.0]))
    assert found.rows.tolist() == [1, 1]
