"""Statistics over seeds and games, against known answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tools.aggregates import area_under_curve, estimate, first_reached, interquartile_mean, mean, mean_curve, on_grid


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ([7], 7),
        ([1, 2, 9], 4),  # fewer than four: nothing is cut
        ([100, 2, 3, -100], 2.5),
        ([0, 1, 2, 3, 4, 5, 6, 1000], 3.5),
        ([9, 0, 1, 2, 3, -50, 1000], 3.0),  # floor(7 / 4) = 1 at either end
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(scores: list[float], wanted: float) -> None:
    assert interquartile_mean(np.array(scores, float)) == pytest.approx(wanted)


def test_it_is_taken_over_the_last_axis() -> None:
    assert interquartile_mean(np.array([[100.0, 2, 3, -100], [-100.0, 4, 100, 5]])).tolist() == [2.5, 4.5]


def test_equal_scores_have_an_interval_of_no_width() -> None:
    assert estimate([np.full(3, 5.0), np.full(4, 5.0)], interquartile_mean) == (5.0, 5.0, 5.0)


def test_a_single_seed_has_no_interval() -> None:
    value, low, high = estimate([np.array([1.0]), np.array([4.0])], mean)
    assert value == 2.5
    assert math.isnan(low)
    assert math.isnan(high)


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    scores = np.random.default_rng(1).normal(10, 2, size=400)
    half_width = 1.96 * scores.std() / math.sqrt(len(scores))
    value, low, high = estimate([scores], mean)
    assert value == pytest.approx(scores.mean())
    assert low == pytest.approx(scores.mean() - half_width, abs=0.03)
    assert high == pytest.approx(scores.mean() + half_width, abs=0.03)


def test_seeds_are_drawn_within_their_game_only() -> None:
    """Two games far apart: drawing across them would make an interval of tens."""
    value, low, high = estimate([np.array([0.0, 1.0, 2.0]), np.array([100.0, 101.0, 102.0])], mean)
    assert value == 51
    assert 50 <= low < 50.8
    assert 51.2 < high <= 52


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_the_same_scores_give_the_same_interval(statistic: Callable[[np.ndarray], np.ndarray]) -> None:
    scores = [np.random.default_rng(2).normal(size=8)]
    assert estimate(scores, statistic) == estimate(scores, statistic)


def test_a_mean_curve_lies_within_its_seeds() -> None:
    curves = np.array([[0.0, 1.0, np.nan], [2.0, 1.0, 3.0], [4.0, 1.0, 3.0]])
    centre, low, high = mean_curve(curves)
    assert centre[:2].tolist() == [2.0, 1.0]
    assert (low[0], high[0]) == (0.0, 4.0)  # of three seeds all are drawn alike in 1 of 27 resamples, more than 2.5 %
    assert low[1] == pytest.approx(1.0)
    assert high[1] == pytest.approx(1.0)
    assert np.isnan([centre[2], low[2], high[2]]).all()


def test_a_single_curve_has_no_interval() -> None:
    centre, low, high = mean_curve(np.array([[1.0, 2.0]]))
    assert centre.tolist() == [1.0, 2.0]
    assert np.isnan([low, high]).all()


def test_a_curve_is_unknown_before_it_begins_and_level_after_it_ends() -> None:
    read = on_grid(np.array([2.0, 4.0]), np.array([1.0, 3.0]), np.array([1.0, 3.0, 9.0]))
    assert np.isnan(read[0])
    assert read[1:].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("x", "y", "horizon", "wanted"),
    [
        ([0, 10], [0, 1], 10, 0.5),
        ([5, 10], [1, 1], 10, 1.0),  # before its first point it has its first value
        ([0, 10, 20], [0, 1, 1], 20, 0.75),
        ([0, 10, 20], [0, 1, 9], 10, 0.5),  # what comes later does not count
        ([0, 10, 20], [0, 1, 9], 5, 0.25),
        ([0, 20], [0, 2], 10, 0.5),  # the horizon between two points
    ],
)
def test_the_area_under_a_curve(x: list[float], y: list[float], horizon: float, wanted: float) -> None:
    assert area_under_curve(np.array(x, float), np.array(y, float), horizon) == pytest.approx(wanted)


def test_where_a_threshold_is_reached_first() -> None:
    x, y = np.array([10.0, 20, 30, 40]), np.array([-1.0, 0.0, -1.0, 2.0])
    assert first_reached(x, y, 0.0) == 20
    assert first_reached(x, y, 1.5) == 40
    assert first_reached(x, y, 3.0) == math.inf
