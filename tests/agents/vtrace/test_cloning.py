"""CLEAR's cloning losses against the ground truth, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.distributions import Categorical
from agents.vtrace.cloning import policy_cloning_loss, value_cloning_loss
from tests.agents.support import each_golden_case, tensors


def inputs_of(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    inputs = tensors(case["inputs"])
    inputs["is_replay"] = inputs["is_replay"].bool()
    for name in ("target_logits", "values", "behaviour_values"):
        inputs[name].requires_grad_()
    return inputs


@each_golden_case("clear.json")
def test_policy_cloning_matches_the_ground_truth(case: dict[str, Any]) -> None:
    inputs, expected = inputs_of(case), case["outputs"]
    divergences = Categorical(inputs["target_logits"].shape[-1]).kl(inputs["behaviour_logits"], inputs["target_logits"])
    loss = policy_cloning_loss(divergences, inputs["is_replay"])
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected["policy_cloning_sum"], rel=1e-5, abs=1e-5)
    gradient = torch.tensor(expected["grad_policy_cloning_sum_wrt_target_logits"])
    torch.testing.assert_close(inputs["target_logits"].grad, gradient, rtol=1e-4, atol=1e-6)


@each_golden_case("clear.json")
def test_value_cloning_matches_the_ground_truth(case: dict[str, Any]) -> None:
    inputs, expected = inputs_of(case), case["outputs"]
    loss = value_cloning_loss(inputs["values"], inputs["behaviour_values"], inputs["is_replay"])
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected["value_cloning_sum"], rel=1e-5, abs=1e-5)
    gradient = torch.tensor(expected["grad_value_cloning_sum_wrt_values"])
    torch.testing.assert_close(inputs["values"].grad, gradient, rtol=1e-5, atol=1e-6)
    assert inputs["behaviour_values"].grad is None


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="is_replay"):
        value_cloning_loss(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="is_replay"):
        policy_cloning_loss(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
