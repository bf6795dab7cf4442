"""LASER's trust region against the ground truth, and what it may not depend on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.distributions import Categorical, MultiCategorical
from agents.vtrace.laser import relevance_divergence
from tests.agents.support import each_golden_case, golden_targets, tensors


def divergence_of(case: dict[str, Any], relevance: str) -> torch.Tensor:
    inputs = tensors(case["inputs"])
    target, behaviour = inputs["target_logits"], inputs["behaviour_logits"]
    return relevance_divergence(Categorical(target.shape[-1]), target, behaviour, rho_bar=case["rho_bar"], relevance=relevance)


@each_golden_case("laser.json")
def test_divergences_match_the_ground_truth(case: dict[str, Any]) -> None:
    expected = tensors(case["outputs"])
    torch.testing.assert_close(divergence_of(case, "implied"), expected["kl_target_implied"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(divergence_of(case, "behaviour"), expected["kl_target_behaviour"], rtol=1e-4, atol=1e-6)


@each_golden_case("laser.json")
def test_masked_targets_match_the_ground_truth(case: dict[str, Any]) -> None:
    inputs, expected = tensors(case["inputs"]), tensors(case["outputs"])
    relevant = divergence_of(case, case["relevance"]) < case["kl_threshold"]
    torch.testing.assert_close(relevant.float(), expected["relevant"].float(), rtol=0, atol=0)
    assert not relevant.all()
    policy = Categorical(inputs["target_logits"].shape[-1])
    target, behaviour = (policy.log_prob(inputs[f"{whose}_logits"], inputs["actions"]) for whose in ("target", "behaviour"))
    targets = golden_targets(case, target - behaviour, inputs["discounts"], mask=relevant)
    torch.testing.assert_close(targets.vs, expected["vs"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(targets.pg_advantages, expected["pg_advantages"], rtol=1e-5, atol=1e-5)


def test_the_policy_itself_is_always_relevant() -> None:
    logits = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    for relevance in ("implied", "behaviour"):
        found = relevance_divergence(Categorical(5), logits, logits, rho_bar=1.0, relevance=relevance)
        torch.testing.assert_close(found, torch.zeros(3, 2), rtol=0, atol=1e-6)


def test_a_large_clip_makes_every_policy_relevant() -> None:
    """With rho_bar without bound the implied policy is the current one, however far the behaviour policy is."""
    generator = torch.Generator().manual_seed(0)
    target, behaviour = torch.randn(4, 3, 5, generator=generator), 3 * torch.randn(4, 3, 5, generator=generator)
    far = relevance_divergence(Categorical(5), target, behaviour, rho_bar=1.0)
    assert float(far.max()) > 0.1
    for rho_bar in (1e9, None):
        near = relevance_divergence(Categorical(5), target, behaviour, rho_bar=rho_bar)
        assert float(near.abs().max()) < 1e-5


def test_an_unknown_relevance_is_refused() -> None:
    with pytest.raises(ValueError, match="implied or behaviour"):
        relevance_divergence(Categorical(2), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), rho_bar=1.0, relevance="action")


def test_several_choices_have_no_implied_policy() -> None:
    """It would sum over all combinations. The divergence from the behaviour policy is the sum over the components."""
    generator = torch.Generator().manual_seed(0)
    target, behaviour = torch.randn(4, 3, 5, generator=generator), torch.randn(4, 3, 5, generator=generator)
    policy = MultiCategorical((2, 3))
    with pytest.raises(ValueError, match="wanted behaviour .*got implied"):
        relevance_divergence(policy, target, behaviour, rho_bar=1.0)
    parts = [
        relevance_divergence(Categorical(count), one, other, rho_bar=1.0, relevance="behaviour")
        for count, one, other in zip((2, 3), target.split((2, 3), -1), behaviour.split((2, 3), -1), strict=True)
    ]
    torch.testing.assert_close(
        relevance_divergence(policy, target, behaviour, rho_bar=1.0, relevance="behaviour"), parts[0] + parts[1]
    )
