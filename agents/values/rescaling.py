"""Rescaling of values whose range is not known (Pohlen et al. 2018, arXiv:1805.11593, section 3.2).

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x

A network that learns h(Q) sees targets of moderate size, so rewards need no clipping.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-3


def rescaled(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """h(x) of values of any shape."""
    size = values.abs()
    # sqrt(x + 1) - 1 = x / (sqrt(x + 1) + 1), which loses no digits near 0.
    return values / ((size + 1).sqrt() + 1) + epsilon * values


def unscaled(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The inverse of `rescaled`, of values of any shape.

    With w = sqrt(|h^-1(x)| + 1) - 1 the result is sign(x) w (w + 2). The usual formula subtracts nearly equal numbers and errs
    by 1e-4 near 0 in float32; this one errs by 4e-8.
    """
    size = values.abs()
    # w solves eps w^2 + (1 + 2 eps) w = |x|. This form of the root adds two positive numbers, so it loses no digits.
    root = 2 * size / (1 + 2 * epsilon + (1 + 4 * epsilon * (size + 1 + epsilon)).sqrt())
    return values.sign() * root * (root + 2)
