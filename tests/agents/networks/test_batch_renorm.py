"""Batch renormalisation: golden passes of CrossQ's critics, the gradient, and which batches move the running statistics."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agents.continuous.critics import Critics, StackedLinear
from agents.continuous.losses import critic_loss, soft_targets
from agents.engine.collectives import Collectives
from agents.networks.batch_renorm import BatchRenorm, add_renorms, renorms_of, statistics_of_batch
from tests.support import golden

NORMS = (("scale0", "bias0", "mean0", "var0"), ("scale1", "shift1", "mean1", "var1"))


def golden_critics(case: dict[str, Any]) -> Critics:
    """The recorded critics in float64: norm, linear layer, ReLU, norm, linear layer."""
    recorded = case["inputs"]["critics"]

    def each(name: str) -> Tensor:
        return torch.tensor([critic[name] for critic in recorded], dtype=torch.float64)

    inputs, hidden = each("scale0").shape[1], each("scale1").shape[1]
    critics = Critics(len(recorded), inputs, 1, (hidden,), "relu", renorm_warm_up=0 if case["renorm"] else 1).double()
    with torch.no_grad():
        for norm, names in zip(renorms_of(critics), NORMS, strict=True):
            for tensor, name in zip((norm.scale, norm.offset, norm.mean, norm.variance), names, strict=True):
                tensor.copy_(each(name).unsqueeze(1))
        for number, linear in enumerate((layer for layer in critics.layers if isinstance(layer, StackedLinear)), 1):
            linear.weight.copy_(each(f"weight{number}").view_as(linear.weight))
            linear.bias.copy_(each(f"bias{number}").view_as(linear.bias))
    return critics


@pytest.mark.parametrize("case", golden("crossq.json"), ids=lambda case: case["name"])
def test_one_pass_over_both_halves_has_the_golden_values(case: dict[str, Any]) -> None:
    given = {name: torch.tensor(case["inputs"][name], dtype=torch.float64) for name in case["inputs"] if name != "critics"}

    def check(name: str, got: Tensor) -> None:
        wanted = torch.tensor(case["outputs"][name], dtype=torch.float64).view_as(got)
        torch.testing.assert_close(got.detach(), wanted, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}")

    critics = golden_critics(case)
    observations = torch.cat([given["observations"], given["next_observations"]])
    actions = torch.cat([given["actions"], given["next_actions"]])
    check("q_with_running_statistics", critics(given["observations"], given["actions"]))
    with statistics_of_batch(critics, Collectives()):
        q, next_q = critics(observations, actions).chunk(2, 1)
    check("q", q)
    check("next_q", next_q)
    discounts, alpha = case["gamma"] * (1 - given["terminated"]), torch.tensor(case["alpha"], dtype=torch.float64)
    targets = soft_targets(given["rewards"], discounts, next_q.detach(), given["next_log_probs"], alpha)
    check("targets", targets)
    loss = 0.5 * critic_loss(q, targets)
    check("loss", loss)
    last = critics.layers[-1]
    assert isinstance(last, StackedLinear)
    for name, gradient in zip(("weight2", "bias2"), torch.autograd.grad(loss, [last.weight, last.bias]), strict=True):
        check(f"grad_loss_wrt_{name}", gradient)
    for norm, layer in zip(renorms_of(critics), ("layer0", "layer1"), strict=True):
        norm.follow(torch.tensor(True))
        for tensor, name in ((norm.mean, "running_mean"), (norm.variance, "running_variance")):
            wanted = torch.tensor([critic[name] for critic in case["outputs"][layer]], dtype=torch.float64)
            torch.testing.assert_close(tensor.squeeze(1), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("by_batch", [True, False])
def test_critics_compute_what_their_layers_do_one_after_another(by_batch: bool) -> None:
    torch.manual_seed(1)
    critics = Critics(2, 5, 1, (6, 7), "relu", renorm_warm_up=0).double()
    for norm in renorms_of(critics):
        for tensor in (norm.mean, norm.variance, *norm.parameters()):
            tensor.data.uniform_(0.3, 2.0)
    observations = torch.randn(8, 3, dtype=torch.float64)
    actions = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    learned = [actions, *critics.parameters()]
    with statistics_of_batch(critics, Collectives()) if by_batch else nullcontext():
        found = critics(observations, actions)
        wanted = critics.layers(torch.cat([observations, actions], -1).expand(2, 8, 5)).squeeze(-1)
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(each.sin().sum(), learned) for each in (found, wanted))
    torch.testing.assert_close(*gradients)


def outputs_of(norm: BatchRenorm, inputs: Tensor) -> Tensor:
    with statistics_of_batch(norm, Collectives()):
        outputs: Tensor = norm(inputs)
    return outputs


@pytest.mark.parametrize("warm_up", [0, 1])
def test_gradients_flow_through_the_statistics_of_the_batch(warm_up: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    norm = BatchRenorm(3, (2,), warm_up).double()
    norm.mean.normal_()
    norm.variance.uniform_(0.3, 2.0)
    inputs = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    # r and d have no gradient, so that a numerical one must hold them.
    constants = norm.corrections(inputs.detach().mean(-2, True), inputs.detach().var(-2, correction=0, keepdim=True))
    monkeypatch.setattr(norm, "corrections", lambda *_: constants)
    assert torch.autograd.gradcheck(lambda x: outputs_of(norm, x), inputs)
    loss = outputs_of(norm, inputs).sin().sum()
    for parameter, gradient in zip(
        (norm.scale, norm.offset), torch.autograd.grad(loss, [norm.scale, norm.offset]), strict=True
    ):
        step = torch.zeros_like(parameter)
        step[1, 0, 2] = 1e-6
        with torch.no_grad():
            parameter += step
            above = outputs_of(norm, inputs).sin().sum()
            parameter -= step
        assert float(gradient[1, 0, 2]) == pytest.approx(float(above - loss.detach()) / 1e-6, rel=1e-4)


def test_a_unit_that_is_zero_in_all_rows_has_a_finite_gradient() -> None:
    norm = BatchRenorm(2, warm_up=0)
    norm.mean += 1.0
    inputs = torch.stack([torch.zeros(4), torch.arange(4.0)], -1).requires_grad_()
    (gradient,) = torch.autograd.grad(outputs_of(norm, inputs).square().sum(), inputs)
    assert gradient.isfinite().all()


def test_a_mean_of_many_deviations_costs_no_precision() -> None:
    torch.manual_seed(1)
    exact = 1e4 + torch.randn(64, 1, dtype=torch.float64)
    norm = BatchRenorm(1)
    found, wanted = outputs_of(norm, exact.float()), outputs_of(norm.double(), exact.float().double())
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-3)


def test_a_refused_batch_leaves_the_running_statistics_and_the_count() -> None:
    norm = BatchRenorm(1, warm_up=2)
    for applied, value in ((True, 1.0), (False, float("nan")), (True, 1.0), (True, 1.0)):
        outputs_of(norm, torch.full((4, 1), value))
        norm.follow(torch.tensor(applied))
    norm.follow(torch.tensor(True))  # no batch came: nothing to follow
    assert norm.mean.item() == pytest.approx(1 - 0.99**3)
    assert norm.steps.item() == 2  # it counts no further than the warm-up


def test_rows_outside_of_learning_are_normalised_by_the_running_statistics() -> None:
    norm = BatchRenorm(1)
    norm.mean.fill_(3.0)
    norm.variance.fill_(4.0 - 1e-3)
    torch.testing.assert_close(norm(torch.tensor([[5.0], [3.0]])), torch.tensor([[1.0], [0.0]]))
    assert not norm.seen


def test_a_torso_in_bfloat16_keeps_its_statistics_exact() -> None:
    norm = BatchRenorm(1)
    norm.mean.fill_(100.25)
    moved = nn.Sequential(norm, nn.Linear(1, 1)).to(torch.bfloat16)
    assert moved[1].weight.dtype == torch.bfloat16
    assert norm.mean.item() == 100.25
    assert norm(torch.tensor([[100.5]], dtype=torch.bfloat16)).dtype == torch.float32


def test_layers_are_normalised_before_the_first_and_behind_each_activation() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU())
    add_renorms(layers, 7)
    assert [type(layer).__name__ for layer in layers] == [
        *("Flatten", "BatchRenorm", "Linear", "LayerNorm", "ReLU", "BatchRenorm", "Linear", "ReLU", "BatchRenorm")
    ]
    assert [norm.scale.shape[-1] for norm in renorms_of(layers)] == [3, 4, 5]
