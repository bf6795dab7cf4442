"""The losses of V-MPO equal the golden vectors, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical, DiagonalGaussian
from agents.vmpo.losses import bound_losses, divergences, e_step, policy_loss, temperature_loss
from tests.support import golden

POLICIES = [case for case in golden("vmpo.json") if "policy" in case]
EACH = pytest.mark.parametrize("case", POLICIES, ids=lambda case: case["name"])


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@EACH
def test_weights_and_temperature_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    eta = exact(case["eta"]).requires_grad_()
    step = e_step(exact(given["advantages"]), torch.tensor(given["action_used"]).bool(), eta)
    loss = temperature_loss(eta, step, case["eps_eta"])
    (gradient,) = torch.autograd.grad(loss, eta)
    assert ((step.psi > 0) <= torch.tensor(wanted["top"]).bool()).all()
    for got, name in ((step.psi, "psi"), (loss, "temperature_loss"), (gradient, "grad_temperature")):
        torch.testing.assert_close(got.detach(), exact(wanted[name]), rtol=1e-10, atol=1e-10)


@EACH
def test_policy_and_bounds_are_those_of_the_golden_vectors(case: dict[str, Any]) -> None:
    given, wanted = case["inputs"], case["outputs"]
    used = torch.tensor(given["action_used"]).bool()
    is_gaussian = case["policy"] == "gaussian"
    names = ("mean", "log_std") if is_gaussian else ("logits",)
    new = [exact(given[name]).requires_grad_() for name in names]
    old = torch.cat([exact(given[f"old_{name}"]) for name in names], -1)
    distribution = DiagonalGaussian(case["D"]) if is_gaussian else Categorical(case["A"])
    alphas = exact([case["alpha_mean"], case["alpha_std"]] if is_gaussian else [case["alpha"]]).requires_grad_()
    epsilons = [case["eps_mean"], case["eps_std"]] if is_gaussian else [case["eps_alpha"]]
    step = e_step(exact(given["advantages"]), used, exact(case["eta"]))
    actions = exact(given["actions"]) if is_gaussian else torch.tensor(given["actions"])
    imitated = policy_loss(step, distribution.log_prob(torch.cat(new, -1), actions))
    parts = divergences(distribution, old, torch.cat(new, -1))
    kl_loss, alpha_loss = bound_losses(torch.stack([part[used].mean() for part in parts]), alphas, epsilons)
    gradients = torch.autograd.grad(imitated + kl_loss, new)
    (of_alphas,) = torch.autograd.grad(alpha_loss, alphas)
    compared = {"policy_loss": imitated, "kl_loss": kl_loss, "alpha_loss": alpha_loss}
    compared |= {"grad_alphas": of_alphas} if is_gaussian else {"grad_alpha": of_alphas[0]}
    compared |= dict(zip(("kl_mean_part", "kl_std_part") if is_gaussian else ("kl",), parts, strict=True))
    compared |= {f"grad_policy_and_kl_loss_wrt_{name}": each for name, each in zip(names, gradients, strict=True)}
    for name, got in compared.items():
        torch.testing.assert_close(got.detach(), exact(wanted[name]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_without_a_used_step_has_no_loss_and_no_gradient(dtype: torch.dtype) -> None:
    eta, log_probs = torch.ones((), dtype=dtype, requires_grad=True), torch.full((4,), -1.0, dtype=dtype, requires_grad=True)
    step = e_step(torch.full((4,), torch.nan, dtype=dtype), torch.zeros(4, dtype=torch.bool), eta)
    loss = policy_loss(step, log_probs) + temperature_loss(eta, step, 0.1)
    gradients = torch.autograd.grad(loss, [eta, log_probs], allow_unused=True)
    assert loss.item() == 0
    assert all(gradient is None or not gradient.any() for gradient in gradients)


def test_advantages_of_thousands_do_not_overflow() -> None:
    advantages = torch.tensor([5000.0, 4999.0, -5000.0, 0.0])
    step = e_step(advantages, torch.ones(4, dtype=torch.bool), torch.tensor(0.5))
    torch.testing.assert_close(step.psi, torch.tensor([0.8808, 0.1192, 0.0, 0.0]), rtol=0, atol=1e-4)
    assert temperature_loss(torch.tensor(0.5), step, 0.0).item() == pytest.approx(5000 + 0.5 * (0.1269 - 0.6931), abs=1e-3)


@pytest.mark.parametrize(("eta", "spread"), [(0.1, 0.1), (1e-4, 0.0), (1e-8, 0.0)])
def test_a_large_common_advantage_changes_neither_weights_nor_the_step_of_the_temperature(eta: float, spread: float) -> None:
    advantages = spread * torch.randn(640, generator=torch.Generator().manual_seed(0))
    found = []
    for offset in (0.0, 4096.0):
        # Differences are as precise in float32 as the offset leaves them, in both.
        given, temperature = (advantages + 4096.0) - 4096.0 + offset, torch.tensor(eta, requires_grad=True)
        step = e_step(given, torch.ones(640, dtype=torch.bool), temperature)
        found.append((step.psi, *torch.autograd.grad(temperature_loss(temperature, step, 0.1), temperature)))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert float(found[1][0].sum()) == pytest.approx(1, abs=1e-5)
