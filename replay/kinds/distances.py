"""How far trajectories are from the current policy: pure functions, small means near.

`target` is what the current network makes of a trajectory's states, `behaviour` what the network that acted made of them, both
`[n, T, F]`; every function returns `[n]` in float64. x_T, the state that no action was taken in, has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def ln_norm(target: np.ndarray, behaviour: np.ndarray, p: float = 2.0) -> np.ndarray:
    """(sum over t and f of |target - behaviour|^p)^(1/p)."""
    return _norm(_flat(target) - _flat(behaviour), p)


def cos_dist(target: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """One minus the cosine of the flattened vectors, in [0, 2]. A vector of zeros is at 1 of all but another one, at 0."""
    one, other = _flat(target), _flat(behaviour)
    return 1 - _cosine(np.sum(one * other, axis=1), _norm(one, 2), _norm(other, 2))


def kl_div(target: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """Sum over t of KL(softmax target_t || softmax behaviour_t)."""
    log_target, log_behaviour = _log_softmax(target), _log_softmax(behaviour)
    return np.sum(np.exp(log_target) * (log_target - log_behaviour), axis=(1, 2))


def kl_policy(target: np.ndarray, behaviour: np.ndarray) -> np.ndarray:
    """The same on policy logits `[n, T, A]`, which every trajectory stores."""
    return kl_div(target, behaviour)


DISTANCES: dict[str, Callable[..., np.ndarray]] = {
    "ln_norm": ln_norm,
    "cos_dist": cos_dist,
    "kl_div": kl_div,
    "kl_policy": kl_policy,
}

POLICY_DISTANCES = ("kl_policy",)
"""Those that compare policy logits instead of features."""


def make_distance(name: str, p: float) -> Distance:
    """The function of that name; p is that of ln_norm."""
    return partial(ln_norm, p=p) if name == "ln_norm" else DISTANCES[name]


def state_distances(name: str, p: float, states: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Distance of each state to each anchor, as the function of that name has it for trajectories of one step.

    states `[N, F]` (target), anchors `[E, F]` (behaviour). Returns `[N, E]`.
    """
    one, other = states.astype(np.float64), anchors.astype(np.float64)
    if name == "cos_dist":
        return 1 - _cosine(one @ other.T, _norm(one, 2)[:, None], _norm(other, 2)[None])
    if name == "ln_norm" and p == 2:
        return _euclidean(one, other)
    if name == "ln_norm":
        return np.stack([_norm(one - anchor, p) for anchor in other], axis=1)
    log_one, log_other = _log_softmax(one), _log_softmax(other)
    return np.sum(np.exp(log_one) * log_one, axis=1)[:, None] - np.exp(log_one) @ log_other.T


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1).astype(np.float64)


def _norm(vectors: np.ndarray, p: float) -> np.ndarray:
    """p-norm of each row, scaled by its largest entry, so that no power of it overflows or vanishes."""
    if p == 2:
        return np.sqrt(np.einsum("nf,nf->n", vectors, vectors))
    size = np.abs(vectors)
    largest = size.max(axis=1)
    scale = np.where(largest > 0, largest, 1)
    return scale * np.sum((size / scale[:, None]) ** p, axis=1) ** (1 / p)


def _euclidean(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Length of each difference: |a|^2 + |b|^2 - 2ab, in float64. one `[N, F]`, other `[E, F]`. Returns `[N, E]`.

    What they have in common is taken off first. A distance of zero may then come out as some 5e-8 of the distance to that
    centre, about what features are rounded by as float32; any that is not tiny is exact to many more digits.
    """
    centre = other.mean(axis=0)
    one, other = one - centre, other - centre
    squares = one @ other.T
    squares *= -2
    squares += np.einsum("nf,nf->n", one, one)[:, None]
    squares += np.einsum("ef,ef->e", other, other)
    return np.sqrt(np.maximum(squares, 0, out=squares), out=squares)


def _cosine(product: np.ndarray, norm: np.ndarray, other_norm: np.ndarray) -> np.ndarray:
    norms = norm * other_norm
    cosine = np.clip(product / np.where(norms == 0, 1, norms), -1, 1)
    return np.where(norms == 0, (norm == other_norm).astype(np.float64), cosine)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
