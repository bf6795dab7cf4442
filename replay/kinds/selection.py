"""Selection among n candidate trajectories: pure functions of their distances and of how often each was drawn.

Every strategy takes distances `[n]`, draws `[n]` and count k. It returns k different positions in [0, n), int64 `[k]`, and
raises ValueError unless 1 <= k <= n. Candidates are ordered by distance, ties by position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np


def annealed_multiplier(start: float, annealing: float, progress: float) -> float:
    """Returns max(1, start - (start - 1) * progress / annealing), which reaches 1 when progress reaches annealing."""
    return max(1.0, start - (start - 1) * progress / annealing)  # lambda falls on a line, then stays at 1


def candidate_count(stored: int, count: int, multiplier: float) -> int:
    """Returns the number of different candidates for a batch of `count`. There must be at least `count` stored."""
    wanted = math.floor(round(multiplier * count, 6))  # rounded: 4.35 * 100 is 434.99999999999994 in floats, wanted is 435
    return min(stored, max(count, wanted))  # at least the batch, at most all


def nearest(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Returns the nearest candidates."""
    return _by_distance(distances, count)[:count]


def strided(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Returns candidates evenly spread over the order of distances, with the nearest."""
    order = _by_distance(distances, count)
    return order.take(_starts(len(order), count)[:-1])  # the nearest of each run


def least_replayed(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Returns the candidates drawn least often. Among equals, the nearer goes first."""
    order = _by_distance(distances, count)
    return order[np.argsort(draws[order], kind="stable")][:count]  # stable: equal draws stay in the order of distance


def bucket_least_replayed(distances: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
    """Returns the candidate drawn least often from each of `count` runs, into which the order of distances is cut."""
    order = _by_distance(distances, count)
    starts = _starts(len(order), count)
    runs = [order[first:end] for first, end in pairwise(starts)]  # count runs of near-equal length, none empty
    return np.array([run[np.argmin(draws[run])] for run in runs])  # argmin takes the first: the nearest of the least drawn


Strategy = Callable[[np.ndarray, np.ndarray, int], np.ndarray]

STRATEGIES: dict[str, Strategy] = {
    "strategy1": nearest,
    "strategy2": strided,
    "strategy3": least_replayed,
    "strategy4": bucket_least_replayed,
}


def _by_distance(distances: np.ndarray, count: int) -> np.ndarray:
    if not 1 <= count <= len(distances):
        raise ValueError(f"wanted to select from 1 to {len(distances)} candidates, got {count}")
    return np.argsort(distances, kind="stable")


def _starts(candidates: int, count: int) -> np.ndarray:
    """Returns the start of each of `count` runs and the end of the last: floor(j * n / k) for j in 0..k."""
    return np.arange(count + 1) * candidates // count
