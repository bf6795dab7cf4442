"""The step of TRPO against recorded steps of small policies, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical, DiagonalGaussian, Distribution
from agents.engine.collectives import Collectives
from agents.trpo.region import LineSearchResult, TrustRegion, conjugate_gradient, line_search, natural_step
from tests.agents.support import each_golden_case
from tests.support import golden

F64 = torch.float64
CASES = golden("trpo.json")


class Linear:
    """A policy that is linear in the features of its observations, with the case's weights as one tensor."""

    def __init__(self, case: dict[str, Any]) -> None:
        inputs, size = case["inputs"], case["size_of_action"]
        self.weights = torch.tensor(inputs["parameters"], dtype=F64, requires_grad=True)
        self.features = torch.tensor(inputs["features"], dtype=F64)
        self.actions = torch.tensor(inputs["actions"], dtype=F64 if case["distribution"] == "gaussian" else torch.int64)
        self.advantages = torch.tensor(inputs["advantages"], dtype=F64)[:, None]
        self.gaussian = case["distribution"] == "gaussian"
        self.distribution: Distribution = DiagonalGaussian(size, (False,) * size) if self.gaussian else Categorical(size)
        self.size = size

    def policy(self, columns: slice) -> Tensor:
        """`[N, 1, P]`: there is one column."""
        of_means = self.features.shape[1] * self.size
        outputs = self.features @ self.weights[:of_means].view(-1, self.size)
        if self.gaussian:
            outputs = torch.cat([outputs, self.weights[of_means:].expand_as(outputs)], -1)
        return outputs[:, None]

    def objective(self, policy: Tensor, old: Tensor, columns: slice) -> Tensor:
        now, before = (self.distribution.log_prob(each, self.actions[:, None]) for each in (policy, old))
        return (now - before).exp() * self.advantages

    def region(self) -> TrustRegion:
        used = torch.ones(self.advantages.shape, dtype=torch.bool)
        return TrustRegion([self.weights], self.policy, self.distribution, self.objective, used, Collectives(), {})


def close(found: Tensor, recorded: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(recorded, dtype=F64), rtol=1e-7, atol=1e-9)


@each_golden_case("trpo.json")
def test_gradient_and_fisher_products_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    region, outputs = Linear(case).region(), case["outputs"]
    close(region.gradient, outputs["gradient"])
    vector = torch.tensor(case["inputs"]["vector"], dtype=F64)
    close(region.product(vector), outputs["fisher_vector_product"])
    identity = torch.eye(len(vector), dtype=F64)
    close(torch.stack([region.product(row) for row in identity]), outputs["fisher"])


@each_golden_case("trpo.json")
def test_conjugate_gradients_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    outputs = case["outputs"]
    damped = torch.tensor(outputs["fisher"], dtype=F64)
    damped += case["damping"] * torch.eye(len(damped), dtype=F64)
    gradient = torch.tensor(outputs["gradient"], dtype=F64)
    close(conjugate_gradient(damped.mv, gradient, 1), outputs["cg_first_iterate"])
    solution = conjugate_gradient(damped.mv, gradient, case["cg_iterations"])
    close(solution, outputs["cg_solution"])
    step = natural_step(damped.mv, gradient, case["max_kl"], case["cg_iterations"])
    close(step, (outputs["step_size"] * solution).tolist())


@each_golden_case("trpo.json")
def test_the_line_search_accepts_the_recorded_step(case: dict[str, Any]) -> None:
    linear, outputs = Linear(case), case["outputs"]
    region = linear.region()
    damped = lambda vector: region.product(vector) + case["damping"] * vector  # noqa: E731
    step = natural_step(damped, region.gradient, case["max_kl"], case["cg_iterations"])
    before = float(linear.advantages.mean())
    seen = []

    def measure(fraction: float) -> tuple[float, float]:
        region.move(fraction * step)
        gain, divergence = region.measure()
        seen.append({"fraction": fraction, "surrogate": before + gain, "kl": divergence})
        return gain, divergence

    found = line_search(measure, case["max_kl"], case["backtrack_coefficient"], case["max_backtracks"])
    assert seen == [pytest.approx(recorded, rel=1e-7) for recorded in outputs["line_search"]]
    assert (found.tried - 1 if found.accepted else -1) == outputs["accepted"]
    if not found.accepted:
        region.move(torch.zeros_like(step))
    close(linear.weights.detach(), outputs["new_parameters"])


def test_conjugate_gradients_stop_at_a_small_residual() -> None:
    products = []

    def product(vector: Tensor) -> Tensor:
        products.append(vector)
        return 2 * vector

    target = torch.tensor([1.0, -3.0])
    assert conjugate_gradient(product, target, 10).tolist() == [0.5, -1.5]
    assert len(products) == 1
    assert conjugate_gradient(product, torch.zeros(2), 10).tolist() == [0.0, 0.0]
    assert len(products) == 1


@pytest.mark.parametrize(
    ("gains", "divergences", "tried"), [([1, 1], [2.0, 1.0], 2), ([0, 1], [1, 1], 2), ([-1, 0], [1, 1], None)]
)
def test_a_step_must_gain_and_stay_in_the_region(gains: list[float], divergences: list[float], tried: int | None) -> None:
    results = iter(zip(gains, divergences, strict=True))
    found = line_search(lambda fraction: next(results), 1.0, 0.5, 2)
    assert found == (
        LineSearchResult(False, 2) if tried is None else LineSearchResult(True, tried, gains[tried - 1], divergences[tried - 1])
    )
