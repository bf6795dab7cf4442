"""Distances of trajectories from the current policy: pure functions, small is near.

`target` is the current network's output for a trajectory's states, `behaviour` the output of the network that acted. Both are
`[n, T, F]`. Every function returns float64 `[n]`. The state x_T is left out: no action was taken in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]

Divergence = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""KL(one || other) `[...]`, float64, of policies with parameters `[..., P]`, which are broadcast."""

FORBIDDEN = -5e7
"""Log-probabilities below it are those of actions that a mask forbids."""
LOG_OF_FORBIDDEN = float(np.log(0.01))
"""Log-probability of a forbidden action for policies of other states. Its own, some -1e8, would sort states by their masks."""
PAIRS_AT_ONCE = 100_000
"""Pairs of states and anchors for which a divergence is computed at once, which bounds its memory."""


def ln_norm(target: np.ndarray, behaviour: np.ndarray, p: float = 2.0) -> np.ndarray:
    """Returns (sum over t and f of |target - behaviour|^p)^(1/p)."""
    return _norm(_flat(target) - _flat(behaviour), p)  # [n, T * F] -> [n]


def cos_dist(target: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """Returns one minus the cosine of the flattened vectors, in [0, 2].

    A zero vector has distance 0 to another zero vector and 1 to any other vector.
    """
    one, other = _flat(target), _flat(behaviour)  # [n, T * F] each
    # One minus it, because small must mean near, and the cosine of near vectors is large.
    return 1 - _cosine(np.sum(one * other, axis=1), _norm(one, 2), _norm(other, 2))


def kl_div(target: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """Returns the sum over t of KL(softmax target_t || softmax behaviour_t)."""
    log_target, log_behaviour = _log_softmax(target), _log_softmax(behaviour)  # [n, T, F] each
    divergence: np.ndarray = np.sum(np.exp(log_target) * (log_target - log_behaviour), axis=(1, 2))
    return divergence  # sum over t and f of p (log p - log q)


def kl_policy(target: np.ndarray, behaviour: np.ndarray, divergence: Divergence | None = None) -> np.ndarray:
    """Returns the sum over t of KL(target_t || behaviour_t) of policies, whose parameters every trajectory stores.

    divergence: of other policies than softmax of logits.
    """
    return kl_div(target, behaviour) if divergence is None else divergence(target, behaviour).sum(axis=1)  # [n, T] -> [n]


DISTANCES: dict[str, Callable[..., np.ndarray]] = {
    "ln_norm": ln_norm,
    "cos_dist": cos_dist,
    "kl_div": kl_div,
    "kl_policy": kl_policy,
}

POLICY_DISTANCES = ("kl_policy",)
"""Distances that compare policies instead of features."""


def make_distance(name: str, p: float, divergence: Divergence | None = None) -> Distance:
    """Returns the function of that name; p is used by ln_norm only, divergence by kl_policy."""
    if name == "kl_policy":
        return partial(kl_policy, divergence=divergence)
    return partial(ln_norm, p=p) if name == "ln_norm" else DISTANCES[name]


def state_distances(
    name: str, p: float, states: np.ndarray, anchors: np.ndarray, divergence: Divergence | None = None
) -> np.ndarray:
    """Returns the distance of each state to each anchor, `[N, E]`: that of trajectories with one step.

    Args:
        name: Key of `DISTANCES`.
        p: Exponent of ln_norm.
        states: The targets, `[N, F]`.
        anchors: The behaviour, `[E, F]`.
        divergence: See `kl_policy`.
    """
    if name in POLICY_DISTANCES and divergence is not None:
        parts = np.array_split(states, -(-len(states) * len(anchors) // PAIRS_AT_ONCE))
        return np.concatenate([divergence(part[:, None], anchors[None]) for part in parts])
    one, other = states.astype(np.float64), anchors.astype(np.float64)  # [N, F], [E, F]
    if name == "cos_dist":
        return 1 - _cosine(one @ other.T, _norm(one, 2)[:, None], _norm(other, 2)[None])
    if name == "ln_norm" and p == 2:
        return _euclidean(one, other)
    if name == "ln_norm":
        return np.stack([_norm(one - anchor, p) for anchor in other], axis=1)  # anchor by anchor: [N, E, F] would be too large
    log_one, log_other = _log_softmax(one), _log_softmax(other)
    log_other = np.where(log_other < FORBIDDEN, LOG_OF_FORBIDDEN, log_other)  # [E, F]
    # KL(p || q) is sum p log p minus sum p log q, so one matrix product gives the second sum of all pairs.
    divergences: np.ndarray = np.sum(np.exp(log_one) * log_one, axis=1)[:, None] - np.exp(log_one) @ log_other.T
    return divergences


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1).astype(np.float64)


def _norm(vectors: np.ndarray, p: float) -> np.ndarray:
    """Returns the p-norm of each vector `[n, F]`. Entries are divided by the largest first, so that no power overflows."""
    if p == 2:
        return np.asarray(np.sqrt(np.einsum("nf,nf->n", vectors, vectors)))
    size = np.abs(vectors)  # [n, F]
    largest = size.max(axis=1)
    scale = np.where(largest > 0, largest, 1)  # a zero vector has norm 0, and no division by 0
    norms: np.ndarray = scale * np.sum((size / scale[:, None]) ** p, axis=1) ** (1 / p)  # c (sum |x / c|^p)^(1/p)
    return norms


def _euclidean(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the length of each difference, `[N, E]` float64, as |a|^2 + |b|^2 - 2ab. one `[N, F]`, other `[E, F]`."""
    # Nearly equal squares cancel in this form. Subtracting a common centre first makes them small: the error of a zero
    # distance is then some 5e-8 of the distance to the centre, like the rounding of float32 features.
    centre = other.mean(axis=0)
    one, other = one - centre, other - centre
    squares: np.ndarray = one @ other.T  # [N, E], one product for all pairs
    squares *= -2
    squares += np.einsum("nf,nf->n", one, one)[:, None]
    squares += np.einsum("ef,ef->e", other, other)
    np.sqrt(np.maximum(squares, 0, out=squares), out=squares)  # rounding may leave a square below 0
    return squares


def _cosine(product: np.ndarray, norm: np.ndarray, other_norm: np.ndarray) -> np.ndarray:
    norms = norm * other_norm
    cosine = np.clip(product / np.where(norms == 0, 1, norms), -1, 1)  # rounding may leave [-1, 1]
    return np.where(norms == 0, (norm == other_norm).astype(np.float64), cosine)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    # The largest becomes 0, so no exp overflows.
    shifted: np.ndarray = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return shifted
