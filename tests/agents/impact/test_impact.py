"""IMPACT's ratio, targets and losses against recorded values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.appo.agent import MinibatchColumns
from agents.impact.agent import ImpactAgent, ImpactConfig, impact_log_ratios
from tests.agents.asynchronous_support import Recorded
from tests.agents.returns.test_gae import golden_cases
from tests.agents.test_distributions import parameters_of


def recorded(case: dict[str, Any], **settings: Any) -> tuple[Recorded, torch.Tensor]:
    """The case, and the parameters of its target network's policy."""
    config = ImpactConfig(target_worker_clip=case["target_worker_clip"], **settings)
    return Recorded(ImpactAgent, config, case), parameters_of(case, "target_network", torch.float32)


CASES = pytest.mark.parametrize("case", golden_cases("impact.json"))


@CASES
def test_ratios_targets_and_advantages_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept, target_policy = recorded(case)
    log_probs = kept.agent._log_probs(MinibatchColumns(kept.batch, target_policy, case["clip"]), kept.policy)
    assert log_probs.target is not None
    log_rhos = torch.tensor(case["outputs"]["log_rhos"])
    torch.testing.assert_close((log_probs.target - log_probs.behaviour)[kept.used], log_rhos[kept.used], rtol=2e-5, atol=1e-5)
    found = kept.agent.estimates(kept.batch, log_probs, kept.values.detach(), kept.agent.config.gamma)
    kept.check("vs", found.targets)
    kept.check("pg_advantages", found.advantages)
    ratios = torch.tensor(case["outputs"]["ratio"])
    torch.testing.assert_close(found.log_ratios.detach().exp()[kept.used], ratios[kept.used], rtol=2e-5, atol=1e-5)
    kept.check("capped_fraction", found.metrics["losses/capped_fraction"])


@CASES
def test_losses_and_their_gradient_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    kept, target_policy = recorded(case)
    terms, metrics, _ = kept.losses(target_policy)
    kept.check("policy_loss", terms["policy_loss"].value)
    kept.check("value_loss", terms["value_loss"].value)
    kept.check("entropy", -terms["entropy_loss"].value)
    kept.check("kl_target_network_target", metrics["losses/target_kl"])
    kept.check_gradient("grad_policy_loss_wrt_log_prob", terms["policy_loss"].value)


@pytest.mark.parametrize("case", golden_cases("impact.json")[:1])
def test_the_penalty_is_the_weighted_divergence_from_the_target_network(case: dict[str, Any]) -> None:
    kept, target_policy = recorded(case, kl_weight=3.0)
    penalty = kept.losses(target_policy).terms["kl_loss"]
    assert penalty.weight * float(penalty.value.detach()) == pytest.approx(
        3.0 * case["outputs"]["kl_target_network_target"], rel=1e-5
    )


def test_the_denominator_is_that_of_the_target_network_unless_it_is_tiny() -> None:
    """log pi = 0: the ratio is 1 / max(pi_tgt, mu / rho)."""
    target, behaviour = torch.tensor([0.4, 0.01]).log(), torch.tensor([0.5, 0.5]).log()
    ratios = impact_log_ratios(torch.zeros(2), target, behaviour, 2.0).exp()
    torch.testing.assert_close(ratios, torch.tensor([1 / 0.4, 1 / 0.25]))
