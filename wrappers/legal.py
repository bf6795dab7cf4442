"""Actions that are chosen without a policy, at random or first. They obey the action mask of the newest observation."""

from __future__ import annotations

import numpy as np

from wrappers.spaces import ACTION_MASK, Packing
from wrappers.spec import EnvSpec


def random_actions(spec: EnvSpec, observations: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Uniformly random actions for N observations `[N, S, *frame_shape]`, legal ones if there is an action mask."""
    actions = spec.action.sample(generator, len(observations))
    mask = _mask_of(spec, observations)
    # Illegal actions score below every random number. So each legal action is equally likely.
    return actions if mask is None else _largest(spec, np.where(mask, generator.random(mask.shape), -1.0))


def first_actions(spec: EnvSpec, observations: np.ndarray) -> np.ndarray:
    """The first legal action for each of N observations `[N, S, *frame_shape]`; zeros without an action mask."""
    mask = _mask_of(spec, observations)
    return np.zeros((len(observations), *spec.action.shape), spec.action.dtype) if mask is None else _largest(spec, mask)


def _mask_of(spec: EnvSpec, observations: np.ndarray) -> np.ndarray | None:
    """bool `[N, mask_size]`, or None for an environment without an action mask."""
    if not any(leaf.name == ACTION_MASK for leaf in spec.leaves):
        return None
    return Packing(spec.leaves).unpack(observations[:, -1])[ACTION_MASK] > 0


def _largest(spec: EnvSpec, scores: np.ndarray) -> np.ndarray:
    """The action of the largest score, the first of equals, for each component. scores: `[N, mask_size]`."""
    drawn = [part.argmax(1) for part in np.split(scores, np.cumsum(spec.action.mask_counts)[:-1], axis=1)]
    return np.stack(drawn, 1).reshape(len(scores), *spec.action.shape).astype(spec.action.dtype)
