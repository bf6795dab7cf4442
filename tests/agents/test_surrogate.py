"""PPO's objectives, diagnostics and controls against recorded values, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.surrogate import (
    approx_kl,
    clip_fraction,
    clipped_value_errors,
    next_kl_weight,
    ratio_bounds,
    stops_early,
    surrogate,
    zero_gradient_fraction,
)
from tests.agents.returns.test_gae import golden_cases
from tests.agents.test_distributions import distribution_of, parameters_of


class Case:
    """A recorded case in float64. Means are over the used steps."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.clip, self.dual_clip, self.outputs = case["clip"], case["dual_clip"], case["outputs"]
        inputs = {name: torch.tensor(values) for name, values in case["inputs"].items()}
        self.inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
        self.used = inputs["action_used"]
        self.distribution = distribution_of(case)
        self.behaviour, self.policy = (parameters_of(case, whose, torch.float64) for whose in ("behaviour", "target"))
        self.policy.requires_grad_()
        self.advantages = torch.where(self.used, self.inputs["advantages"], 0.0)
        log_probs = [
            self.distribution.log_prob(parameters, self.inputs["actions"]) for parameters in (self.policy, self.behaviour)
        ]
        self.log_ratios = torch.where(self.used, log_probs[0] - log_probs[1], 0.0)

    def mean(self, steps: Tensor) -> Tensor:
        return steps[self.used].mean()

    def check(self, name: str, got: Tensor) -> None:
        torch.testing.assert_close(
            got.detach().double(), torch.tensor(self.outputs[name]).double(), rtol=1e-6, atol=1e-6, msg=name
        )


CASES = pytest.mark.parametrize("case", golden_cases("ppo.json"))


@CASES
def test_the_clipped_surrogate_and_its_gradient_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept = Case(case)
    bounds = ratio_bounds(kept.advantages, kept.clip)
    objective = surrogate(kept.log_ratios, kept.advantages, bounds)
    wanted = torch.tensor(kept.outputs["surrogate"]).double()
    torch.testing.assert_close(objective.detach()[kept.used], wanted[kept.used], rtol=1e-6, atol=1e-6)
    loss = -kept.mean(objective)
    kept.check("policy_loss", loss)
    kept.check("zero_gradient_fraction", kept.mean(zero_gradient_fraction(kept.log_ratios, bounds)))
    per_step, per_parameter = torch.autograd.grad(loss, [kept.log_ratios, kept.policy])
    kept.check("grad_policy_loss_wrt_log_prob", per_step)
    for name in ("grad_policy_loss_wrt_target_logits", "grad_policy_loss_wrt_target_parameters"):
        if name in kept.outputs:
            kept.check(name, per_parameter)


@CASES
def test_the_dual_clip_bounds_the_loss_of_bad_actions(case: dict[str, Any]) -> None:
    kept = Case(case)
    loss = -kept.mean(surrogate(kept.log_ratios, kept.advantages, ratio_bounds(kept.advantages, kept.clip, kept.dual_clip)))
    kept.check("policy_loss_dual_clip_3", loss)
    kept.check("grad_policy_loss_dual_clip_3_wrt_log_prob", torch.autograd.grad(loss, kept.log_ratios)[0])


@CASES
def test_the_kl_penalty_equals_the_recorded_one(case: dict[str, Any]) -> None:
    kept = Case(case)
    penalty = case["kl_coefficient"] * kept.mean(kept.distribution.kl(kept.behaviour, kept.policy))
    for name, clip in (("policy_loss_kl_penalty", None), ("policy_loss_clip_and_kl", kept.clip)):
        objective = surrogate(kept.log_ratios, kept.advantages, ratio_bounds(kept.advantages, clip))
        kept.check(name, penalty - kept.mean(objective))


@CASES
def test_diagnostics_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept = Case(case)
    kept.check("clip_fraction", kept.mean(clip_fraction(kept.log_ratios, kept.clip)))
    kept.check("approx_kl_k3", kept.mean(approx_kl(kept.log_ratios)))


@CASES
def test_the_clipped_value_loss_and_its_gradient_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept = Case(case)
    values = kept.inputs["values"].requires_grad_()
    loss = kept.mean(clipped_value_errors(values, kept.inputs["old_values"], kept.inputs["value_targets"], case["value_clip"]))
    kept.check("value_loss_clipped_max", loss)
    kept.check("grad_value_loss_clipped_max_wrt_values", torch.autograd.grad(loss, values)[0])


@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_an_extreme_ratio_gives_finite_losses_and_gradients(log_ratio: float, advantage: float) -> None:
    log_ratios, advantages = torch.full((2, 2), log_ratio, requires_grad=True), torch.full((2, 2), advantage)
    for clip in (0.2, None):
        loss = surrogate(log_ratios, advantages, ratio_bounds(advantages, clip)).sum()
        (gradient,) = torch.autograd.grad(loss, log_ratios)
        assert loss.isfinite()
        assert gradient.isfinite().all()
    assert approx_kl(log_ratios.detach()).isfinite().all()


@pytest.mark.parametrize(("clip", "dual_clip", "name"), [(1.0, None, "clip"), (0.0, None, "clip"), (0.2, 1.0, "dual_clip")])
def test_clips_outside_their_range_are_refused(clip: float, dual_clip: float | None, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: wanted .*; got"):
        ratio_bounds(torch.ones(2), clip, dual_clip)


@pytest.mark.parametrize("case", [case for case in golden_cases("ppo_control.json") if case.values[0]["rule"] == "early_stop"])
def test_an_update_stops_where_the_recorded_one_does(case: dict[str, Any]) -> None:
    steps, epochs, stopped = 0, 0, False
    divergences = iter(case["inputs"]["approx_kl_before_each_step"])
    for _ in range(case["epochs"]):
        epochs += not stopped
        for _ in range(case["minibatches"]):
            stopped = stopped or stops_early(next(divergences), case["target_kl"])
            steps += not stopped
    assert {"steps_taken": steps, "epochs_begun": epochs, "stopped": stopped} == case["outputs"]


@pytest.mark.parametrize("case", [case for case in golden_cases("ppo_control.json") if case.values[0]["rule"] == "adaptive_kl"])
def test_the_weight_of_the_kl_penalty_follows_the_recorded_one(case: dict[str, Any]) -> None:
    weight, weights = exact(case["initial_coefficient"]), []
    for divergence in case["inputs"]["mean_kl_of_each_update"]:
        weight = next_kl_weight(weight, exact(divergence), case["target_kl"])
        weights.append(float(weight))
    assert weights == case["outputs"]["coefficient_after_each_update"]


@pytest.mark.parametrize(("divergence", "wanted"), [(0.0, 1e-6), (1.0, 1e6), (math.nan, 2.0), (math.inf, 2.0)])
def test_the_weight_of_the_kl_penalty_has_bounds_and_ignores_a_divergence_that_is_not_finite(
    divergence: float, wanted: float
) -> None:
    weight = exact(2.0)
    for _ in range(100):
        weight = next_kl_weight(weight, exact(divergence), 0.01)
    assert float(weight) == wanted


def exact(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)
