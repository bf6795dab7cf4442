"""The step of TRPO within its trust region (Schulman et al. 2015, arXiv:1502.05477, section 6 and appendix C).

The step maximises the linear part of the objective L, while the quadratic part of the mean divergence stays at delta:

    max g.s   with   s.(F + c I)s / 2 <= delta,   so   s = sqrt(2 delta / x.(F + c I)x) x,   (F + c I) x = g

F is the Hessian of the mean divergence KL(pi_old || pi) at pi = pi_old, and c damps it. F is never made: the conjugate gradient
method asks only for its products with vectors. Both parts are approximations, so a line search then shortens the step until
the divergence itself is small enough and L itself has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agents.distributions import Distribution
from agents.engine.collectives import Collectives
from agents.engine.guard import give_gradients

SMALL_RESIDUAL = 1e-10
"""Squared norm of the residual at which conjugate gradients stop."""

Product = Callable[[Tensor], Tensor]
"""Returns the product of a symmetric positive matrix with a vector `[n]`."""


class LineSearchResult(NamedTuple):
    """The end of a line search. tried: steps with the accepted one. gain: of the objective. divergence: mean, in nats."""

    accepted: bool
    tried: int
    gain: float = 0.0
    divergence: float = 0.0


def conjugate_gradient(product: Product, target: Tensor, iterations: int) -> Tensor:
    """Solve A x = target roughly, from x = 0 and with at most so many products. Vectors are `[n]`.

    product: of A, symmetric and positive definite, with a vector.
    """
    solution = torch.zeros_like(target)  # x = 0
    residual = target.clone()  # r = target - A x
    direction = target.clone()  # p, the first direction is r itself
    size = residual @ residual  # r.r, []
    for _ in range(iterations):
        if size < SMALL_RESIDUAL:
            break
        along = product(direction)  # A p
        length = size / (direction @ along)  # alpha = r.r / p.A p, the minimum along p
        solution += length * direction  # x + alpha p
        residual -= length * along  # r - alpha A p
        before, size = size, residual @ residual
        direction = residual + size / before * direction  # beta = r'.r' / r.r makes p' A-orthogonal to p
    return solution


def natural_step(product: Product, gradient: Tensor, max_kl: float, iterations: int) -> Tensor:
    """The step `[n]` along the natural gradient whose predicted divergence is `max_kl`. product: of the damped F."""
    direction = conjugate_gradient(product, gradient, iterations)
    return (2 * max_kl / (direction @ product(direction))).sqrt() * direction  # sqrt(2 delta / x.(F + c I)x) x


def line_search(
    measure: Callable[[float], tuple[float, float]], max_kl: float, coefficient: float, most: int
) -> LineSearchResult:
    """Find the first of the steps shortened by 1, coefficient, coefficient^2, .. that stays in the region and gains.

    Args:
        measure: takes a fraction of the step, and returns the gain of the objective and the divergence there.
        max_kl: the largest divergence, in nats.
        coefficient: in (0, 1).
        most: how many steps are tried.
    """
    for tried in range(most):
        gain, divergence = measure(coefficient**tried)
        if divergence <= max_kl and gain > 0:  # NaN passes neither
            return LineSearchResult(True, tried + 1, gain, divergence)
    return LineSearchResult(False, most)


class TrustRegion:
    """Objective and divergence around the present policy, as means over the used steps of all learners.

    Columns are taken in parts, because the second derivatives keep what every layer computed for the steps of a part.

    Args:
        parameters: the weights of the policy.
        policy: returns the policies of some columns with these weights, `[T, b, P]`, with gradient.
        distribution: of the actions.
        objective: returns the terms of L, `[T, b]`, of policies `[T, b, P]`, those before the step, and the columns.
        used: bool `[T, B]`, the steps that count.
        collectives: operations over all learners.
        inputs: further numbers of this learner that must be finite.
        parts: into which the columns are divided. With one its graph is kept; with several each product computes theirs anew.

    Attributes:
        old: the policies before the step, `[T, B, P]`.
        gradient: of L, `[n]`.
        numbers: all that must be finite for a step.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        policy: Callable[[slice], Tensor],
        distribution: Distribution,
        objective: Callable[[Tensor, Tensor, slice], Tensor],
        used: Tensor,
        collectives: Collectives,
        inputs: Mapping[str, Tensor],
        parts: int = 1,
    ) -> None:
        self._parameters, self._policy, self._distribution = parameters, policy, distribution
        self._objective, self._used, self._collectives = objective, used, collectives
        self._count = used.sum().clamp(min=1)  # [], divisor of every mean here, for a part of the columns too
        self._weights = _flat(parameters).detach()  # theta_old [n]; `_flat` copies, so moves do not change it
        self._slope: Tensor | None = None
        most = -(-used.shape[1] // parts)  # columns of a part
        self._parts = [slice(first, first + most) for first in range(0, used.shape[1], most)]
        values, gradients, old = [], [], []
        for columns in self._parts:
            now = policy(columns)  # [T, b, P]
            old.append(now.detach())
            # R_t = 1 in value, but its gradient is that of log pi: g is the policy gradient.
            value = self._mean(objective(now, old[-1], columns), columns)
            values.append(value.detach())
            gradients.append(self._gradients(value))
        self.old = torch.cat(old, 1)  # [T, B, P]
        value = torch.stack(values).sum()  # L at pi_old, []
        give_gradients(parameters, [torch.stack(of_parts).sum(0) for of_parts in zip(*gradients, strict=True)])
        others = collectives.add_gradients(parameters, {**inputs, "policy_loss": value}, used)
        self.gradient = _flat([each.grad for each in parameters if each.grad is not None]).clone()
        # Causes come first: a number of another learner may be why this learner's objective is not finite.
        self.numbers = {**inputs, **others, "policy_loss": value, "gradient": self.gradient}
        self._before = collectives.mean(value, used)  # L(theta_old), which the line search must exceed

    @torch.enable_grad()
    def product(self, vector: Tensor) -> Tensor:
        """F v, `[n]`: the gradient of the product of v and the divergence's gradient. It may be called without gradient."""
        # grad (grad KL . v) = F v, because v is a constant: two backward passes in place of an n x n matrix.
        products = [_flat(self._gradients(self._slope_of(columns) @ vector)) for columns in self._parts]
        return self._collectives.mean(torch.stack(products).sum(0), self._used)

    @torch.no_grad()
    def move(self, step: Tensor) -> None:
        """Set the weights to those of before plus a step `[n]`."""
        parts = (self._weights + step).split([each.numel() for each in self._parameters])
        for weights, part in zip(self._parameters, parts, strict=True):
            weights.copy_(part.view_as(weights))

    @torch.no_grad()
    def measure(self) -> tuple[float, float]:
        """The gain of L and the mean divergence with the present weights."""
        found = []
        for columns in self._parts:
            now = self._policy(columns)
            value = self._mean(self._objective(now, self.old[:, columns], columns), columns)
            found.append(torch.stack([value, self._divergence(now, columns)]))
        value, divergence = self._collectives.mean(torch.stack(found).sum(0), self._used)  # all learners decide alike
        return float(value - self._before), float(divergence)

    def _slope_of(self, columns: slice) -> Tensor:
        """The gradient `[n]` of the columns' part of the mean divergence, with a graph."""
        if self._slope is not None:
            return self._slope
        # grad KL [n], differentiable
        slope = _flat(self._gradients(self._divergence(self._policy(columns), columns), differentiable=True))
        if len(self._parts) == 1:
            self._slope = slope
        return slope

    def _divergence(self, policy: Tensor, columns: slice) -> Tensor:
        # KL(pi_old || pi). At pi = pi_old value and gradient are 0, but the Hessian is F.
        return self._mean(self._distribution.kl(self.old[:, columns], policy), columns)

    def _mean(self, steps: Tensor, columns: slice) -> Tensor:
        """The part of some columns' steps `[T, b]` in the mean over all used steps, a scalar."""
        return torch.where(self._used[:, columns], steps, 0.0).sum() / self._count  # parts add up to the mean

    def _gradients(self, value: Tensor, *, differentiable: bool = False) -> tuple[Tensor, ...]:
        """Those of a scalar, whose graph is kept. differentiable: whether the gradients have a graph too."""
        return torch.autograd.grad(
            value, self._parameters, retain_graph=True, create_graph=differentiable, materialize_grads=True
        )


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of the tensors, `[n]`."""
    return torch.cat([tensor.flatten() for tensor in tensors])
