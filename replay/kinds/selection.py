"""Which of n candidate trajectories a batch takes: pure functions of their distances and of how often each was drawn.

Every strategy returns k different positions in `[0, n)`. Candidates are ordered by distance, ties by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def annealed_multiplier(start: float, annealing: float, progress: float) -> float:
    """Returns max(1, start - (start - 1) * progress / annealing), which reaches 1 when progress reaches annealing."""
    return max(1.0, start - (start - 1) * progress / annealing)


def candidate_count(stored: int, count: int, multiplier: float) -> int:
    """How many different candidates are drawn for a batch of `count`; needs stored >= count."""
    wanted = math.floor(round(multiplier * count, 6))  # 4.35 times 100 is 435, whatever floats make of it
    return min(stored, max(count, wanted))


def nearest(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """The nearest ones. distances and draws `[n]`; returns positions `[count]`."""
    return _by_distance(distances, count)[:count]


def strided(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Evenly spread over the order of distances, the nearest one included."""
    order = _by_distance(distances, count)
    return order[_starts(len(order), count)[:-1]]


def least_replayed(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Those that were drawn least often, ties to the nearer."""
    order = _by_distance(distances, count)
    return order[np.argsort(draws[order], kind="stable")][:count]


def bucket_least_replayed(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """The order of distances is cut into `count` runs; from each the one drawn least often, ties to the nearer."""
    order = _by_distance(distances, count)
    starts = _starts(len(order), count)
    runs = [order[first:end] for first, end in zip(starts[:-1], starts[1:], strict=True)]
    return np.array([run[np.argmin(draws[run])] for run in runs])


Strategy = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

STRATEGIES: dict[str, Strategy] = {
    "strategy1": nearest,
    "strategy2": strided,
    "strategy3": least_replayed,
    "strategy4": bucket_least_replayed,
}


def _by_distance(distances: np.ndarray, count: int) -> np.ndarray:
    if not 1 <= count <= len(distances):
        raise ValueError(f"wanted from 1 to {len(distances)} of as many candidates, got {count}")
    return np.argsort(distances, kind="stable")


def _starts(candidates: int, count: int) -> np.ndarray:
    """p_0 .. p_count with p_j = floor(j * n / k): where each of `count` runs begins, and the end."""
    return np.arange(count + 1) * candidates // count
