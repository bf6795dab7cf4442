"""C51 and quantile regression: targets, losses and gradients are those of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agents.dqn.errors import NStepTransitions, expected_targets, quantile_targets
from agents.networks.q_network import QOutput
from agents.values.categorical import cross_entropy, divergence, expectation, project, support
from agents.values.hl_gauss import bin_centres, bin_edges, bin_probabilities
from agents.values.implicit import cosines, implicit_priorities, implicit_quantile_loss
from agents.values.q_learning import munchausen_targets, weighted_mean
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


EMBEDDINGS, LOSSES = (lambda case: "embedding" in case["name"]), (lambda case: "embedding" not in case["name"])


@each_golden_case("iqn.json", only=EMBEDDINGS)
def test_fractions_are_described_by_cosines(case: dict[str, Any]) -> None:
    (fractions,), (wanted,) = exact(case["inputs"], "taus"), exact(case["outputs"], "cosines")
    torch.testing.assert_close(cosines(fractions, wanted.shape[-1], case["first"]), wanted, rtol=0, atol=1e-10)


@each_golden_case("iqn.json", only=LOSSES)
def test_the_implicit_loss_is_at_the_drawn_fractions(case: dict[str, Any]) -> None:
    given, wanted, rows = case["inputs"], case["outputs"], torch.arange(case["M"])
    returns, discounts, weights, fractions, online, target, selecting = exact(
        given,
        *("returns", "discounts", "weights", "taus", "quantiles_online", "next_quantiles_target", "next_quantiles_action"),
    )
    actions = torch.tensor(given["actions"])
    targets = quantile_targets(NStepTransitions(actions.view(-1, 1), returns, discounts), target, QOutput(selecting.mean(-1)))
    torch.testing.assert_close(targets, torch.tensor(wanted["targets"], dtype=F64))
    online.requires_grad_()
    taken = online[rows, actions]
    losses = implicit_quantile_loss(taken, fractions, targets, case["kappa"])
    torch.testing.assert_close(losses.detach(), torch.tensor(wanted["loss"], dtype=F64))
    torch.testing.assert_close(implicit_priorities(taken, targets), torch.tensor(wanted["priority_abs_sum_mean"], dtype=F64))
    weighted_mean(losses, weights).backward()
    torch.testing.assert_close(online.grad, torch.tensor(wanted["grad_loss_weighted_mean_wrt_quantiles_online"], dtype=F64))


@each_golden_case("munchausen_iqn.json")
def test_munchausen_takes_the_policy_of_mean_quantiles(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    returns, discounts, now, following, quantiles = exact(
        given,
        *("returns", "discounts", "policy_quantiles_target", "next_policy_quantiles_target", "next_quantiles_target"),
    )
    options = {"temperature": case["tau"], "weight": case["alpha"], "lowest": case["clip"]}
    targets = munchausen_targets(
        returns,
        discounts,
        torch.tensor(given["actions"]),
        now.mean(-1),
        following.mean(-1),
        **options,
        next_quantiles=quantiles,
    )
    torch.testing.assert_close(targets, torch.tensor(wanted["targets"], dtype=F64), rtol=0, atol=1e-10)


@each_golden_case("hl_gauss.json", only=lambda case: "next_logits_target" in case["inputs"])
def test_a_scalar_target_becomes_a_normal_distribution_over_bins(case: dict[str, Any]) -> None:
    given, wanted, counts = case["inputs"], case["outputs"], (case["A"],)
    edges = bin_edges(case["v_min"], case["v_max"], case["bins"])
    torch.testing.assert_close(edges, torch.tensor(wanted["edges"]))
    torch.testing.assert_close(bin_centres(edges), torch.tensor(wanted["centres"]))
    (edges,) = exact(wanted, "edges")
    returns, discounts, logits, selecting, target = exact(
        given, "returns", "discounts", "logits_online", "next_logits_online", "next_logits_target"
    )
    centres, actions = bin_centres(edges), torch.tensor(given["actions"]).view(-1, 1)
    following, online = (QOutput(expectation(each, centres)) for each in (target, selecting))
    targets = expected_targets(NStepTransitions(actions, returns, discounts), following, online, counts)
    probabilities = bin_probabilities(targets, edges, case["sigma_ratio"])
    torch.testing.assert_close(probabilities, torch.tensor(wanted["target_probabilities"], dtype=F64), rtol=0, atol=1e-10)
    logits.requires_grad_()
    weighted_mean(cross_entropy(probabilities, logits[torch.arange(len(logits)), actions[:, 0]])).backward()
    torch.testing.assert_close(logits.grad, torch.tensor(wanted["grad_cross_entropy_mean_wrt_logits_online"], dtype=F64))


@each_golden_case("hl_gauss.json", only=lambda case: "T" in case)
def test_bins_of_state_values_have_any_shape(case: dict[str, Any]) -> None:
    edges, targets = exact(case["outputs"], "edges", "value_targets")
    got = bin_probabilities(targets, edges, case["sigma_ratio"])
    used = torch.tensor(case["inputs"]["action_used"]).bool()
    wanted = torch.tensor(case["outputs"]["target_probabilities"], dtype=F64)
    torch.testing.assert_close(got[used], wanted[used], rtol=0, atol=1e-10)
