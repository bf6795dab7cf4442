"""Statistics over seeds and games: interquartile mean, bootstrap intervals, area under a curve, steps to a threshold.

Interquartile mean and stratified bootstrap follow Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice" (arXiv 2108.13264), sections 4.1 and 4.3. The bootstrap is seeded, so equal runs give equal intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 5000
CONFIDENCE = 0.95

Statistic = Callable[[np.ndarray], np.ndarray]
"""A function from scores `[..., N]` to `[...]`."""


class Estimate(NamedTuple):
    """A number and its bootstrap interval. Both ends are NaN if every stratum has one score, which cannot be resampled."""

    value: float
    low: float
    high: float


def mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis."""
    means: np.ndarray = scores.mean(axis=-1)
    return means


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of the last axis: floor(N / 4) scores are left out at either end.

    With fewer than four scores it is the mean.
    """
    count = scores.shape[-1]
    cut = count // 4
    return mean(np.sort(scores, axis=-1)[..., cut : count - cut])


def estimate(strata: Sequence[np.ndarray], statistic: Statistic) -> Estimate:
    """Return a statistic of all scores with its interval by stratified bootstrap.

    A resample draws seeds with replacement within each game and takes the statistic of all drawn scores. The interval is
    the middle `CONFIDENCE` of `RESAMPLES` such values. strata: the scores of each game, one per seed.
    """
    value = float(statistic(np.concatenate(strata)))
    if max(len(scores) for scores in strata) < 2:
        return Estimate(value, math.nan, math.nan)
    generator = np.random.default_rng(0)
    drawn = [scores[generator.integers(len(scores), size=(RESAMPLES, len(scores)))] for scores in strata]
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), _ends())
    return Estimate(value, float(low), float(high))


def mean_curve(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean of curves `[seeds, points]` and both ends of its bootstrap interval, `[points]` each.

    Whole curves are resampled. A point is NaN if a seed has no value there. A single seed has no interval: its ends are NaN.
    """
    seeds = len(curves)
    if seeds < 2:
        nothing = np.full(curves.shape[1], np.nan)
        return curves[0], nothing, nothing
    picks = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    weights = np.stack([(picks == seed).mean(axis=1) for seed in range(seeds)], axis=1)
    low, high = np.quantile(weights @ curves, _ends(), axis=0)
    return curves.mean(axis=0), low, high


def on_grid(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return a curve interpolated at `grid`: NaN before its first point, constant after its last one."""
    return np.asarray(np.interp(grid, x, y, left=np.nan))


def area_under_curve(x: np.ndarray, y: np.ndarray, horizon: float) -> float:
    """Return the mean height of a curve over [0, horizon]. Before its first point the curve has its first value."""
    inside = x[(x > 0) & (x < horizon)]
    points = np.concatenate([[0.0], inside, [horizon]])
    return float(np.trapezoid(np.interp(points, x, y), points)) / horizon


def first_reached(x: np.ndarray, y: np.ndarray, threshold: float) -> float:
    """Return the first x at which a curve is at `threshold` or above, infinity if there is none."""
    reached = np.flatnonzero(y >= threshold)
    return float(x[reached[0]]) if len(reached) else math.inf


def _ends() -> tuple[float, float]:
    """The quantiles at which the interval begins and ends."""
    return (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
