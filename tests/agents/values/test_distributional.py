"""C51 and quantile regression: targets, losses and gradients are those of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.values.categorical import cross_entropy, divergence, expectation, project, support
from agents.values.q_learning import weighted_mean
from agents.values.quantiles import quantile_loss
from tests.agents.support import each_golden_case
from tests.agents.values.test_q_learning import F64, exact


@each_golden_case("c51.json")
@pytest.mark.parametrize("rule", ["double", "max"])
def test_the_projection_moves_the_target_networks_distribution(case: dict[str, Any], rule: str) -> None:
    online, target, returns, discounts = exact(
        case["inputs"], "next_logits_online", "next_logits_target", "returns", "discounts"
    )
    (atoms,) = exact(case["outputs"], "support")
    torch.testing.assert_close(support(case["v_min"], case["v_max"], case["N"]), atoms.float())
    chosen = expectation(online if rule == "double" else target, atoms).argmax(-1)
    probabilities = torch.softmax(target, -1)[torch.arange(len(chosen)), chosen]
    got = project(returns, discounts, probabilities, atoms)
    wanted = torch.tensor(case["outputs"][f"target_probabilities_{rule}"], dtype=F64)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(got.sum(-1), torch.ones_like(returns), rtol=0, atol=1e-10)


@each_golden_case("c51.json")
def test_cross_entropy_divergence_and_gradient(case: dict[str, Any]) -> None:
    wanted = case["outputs"]
    (logits,) = exact(case["inputs"], "logits_online")
    logits.requires_grad_()
    (targets,) = exact(wanted, "target_probabilities_double")
    taken = logits[torch.arange(len(logits)), torch.tensor(case["inputs"]["actions"])]
    losses = cross_entropy(targets, taken)
    torch.testing.assert_close(losses.detach(), torch.tensor(wanted["cross_entropy_double"], dtype=F64))
    torch.testing.assert_close(
        divergence(targets, losses.detach()), torch.tensor(wanted["kl_double"], dtype=F64), rtol=1e-7, atol=1e-10
    )
    weighted_mean(losses).backward()
    torch.testing.assert_close(logits.grad, torch.tensor(wanted["grad_cross_entropy_mean_wrt_logits_online"], dtype=F64))


def test_no_mass_is_lost_in_float32_where_atoms_are_hit() -> None:
    atoms, probabilities = support(-10.0, 10.0, 51), torch.full((3, 51), 1 / 51)
    moved = project(torch.tensor([0.0, 0.4, -20.0]), torch.tensor([1.0, 1.0, 1.0]), probabilities, atoms)
    torch.testing.assert_close(moved.sum(-1), torch.ones(3), rtol=0, atol=1e-5)
    assert moved[0].allclose(probabilities[0], atol=1e-5)


@each_golden_case("qrdqn.json")
def test_the_quantile_loss_sums_over_own_quantiles_and_averages_over_targets(case: dict[str, Any]) -> None:
    wanted, rows = case["outputs"], torch.arange(case["M"])
    quantiles, targets = *exact(case["inputs"], "quantiles_online"), *exact(wanted, "targets_max")
    quantiles.requires_grad_()
    losses = quantile_loss(quantiles[rows, torch.tensor(case["inputs"]["actions"])], targets, case["kappa"])
    torch.testing.assert_close(losses.detach(), torch.tensor(wanted["loss_max"], dtype=F64))
    weighted_mean(losses).backward()
    torch.testing.assert_close(quantiles.grad, torch.tensor(wanted["grad_loss_mean_max_wrt_quantiles_online"], dtype=F64))
