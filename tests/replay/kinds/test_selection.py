"""Every strategy selects k different positions for any n >= k. Annealing ends at k candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.kinds.selection import (
    STRATEGIES,
    annealed_multiplier,
    bucket_least_replayed,
    candidate_count,
    least_replayed,
    nearest,
    strided,
)
from tests.support import golden

GOLDEN = golden("elite.json")
NAMES = {
    "nearest": "strategy1",
    "strided": "strategy2",
    "least_replayed": "strategy3",
    "bucket_least_replayed": "strategy4",
}
NEVER_DRAWN = np.zeros(6, np.int64)
MEASURED = np.array([0.5, 0.1, 0.4, 0.2, 0.6, 0.3])  # in order: 1 3 5 2 0 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_reference_positions(case: dict[str, Any], name: str) -> None:
    distances = np.array(case["outputs"]["ln_norm_p2"])
    counts = np.array(case["inputs"]["replay_counts"])
    chosen = STRATEGIES[NAMES[name]](distances, counts, case["k"])
    assert chosen.tolist() == case["outputs"]["selected_with_ln_norm_p2"][name]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_strategy_selects_the_wanted_number_of_different_positions(data: st.DataObject) -> None:
    distances = np.array(data.draw(st.lists(st.floats(0, 3) | st.sampled_from([0.0, np.inf, np.nan]), min_size=1, max_size=30)))
    draws = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(distances), max_size=len(distances))))
    count = data.draw(st.integers(1, len(distances)))
    for name, strategy in STRATEGIES.items():
        chosen = strategy(distances, draws, count)
        assert len(set(chosen.tolist())) == len(chosen) == count, name
        assert ((chosen >= 0) & (chosen < len(distances))).all(), name


@pytest.mark.parametrize("strategy", STRATEGIES.values())
@pytest.mark.parametrize("count", [0, 7])
def test_selecting_none_or_too_many_is_refused(strategy: Any, count: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 6 candidates, got {count}"):
        strategy(MEASURED, NEVER_DRAWN, count)


def test_nearest_selects_the_nearest_and_strided_spreads() -> None:
    assert nearest(MEASURED, NEVER_DRAWN, 3).tolist() == [1, 3, 5]
    assert strided(MEASURED, NEVER_DRAWN, 3).tolist() == [1, 5, 0]
    assert strided(MEASURED, NEVER_DRAWN, 4).tolist() == [1, 3, 2, 0]


def test_the_least_replayed_come_first_and_the_nearer_among_equals() -> None:
    draws = np.array([0, 2, 1, 1, 0, 1])
    assert least_replayed(MEASURED, draws, 4).tolist() == [0, 4, 3, 5]
    assert bucket_least_replayed(MEASURED, draws, 2).tolist() == [3, 0]


def test_equal_distances_are_ordered_by_position() -> None:
    for strategy in (nearest, least_replayed):
        assert strategy(np.full(6, 0.5), NEVER_DRAWN, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("start", "annealing", "progress", "wanted"),
    [(6, 1, 0, 6), (6, 1, 0.5, 3.5), (6, 1, 1, 1), (6, 2, 1, 3.5), (6, 0.5, 0.5, 1), (6, 0.5, 1, 1), (1, 1, 0.3, 1)],
)
def test_the_multiplier_falls_to_one(start: float, annealing: float, progress: float, wanted: float) -> None:
    assert annealed_multiplier(start, annealing, progress) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("stored", "count", "multiplier", "wanted"),
    [(100, 10, 6, 60), (100, 10, 1, 10), (30, 10, 6, 30), (1000, 100, 4.35, 435), (100, 3, 1.5, 4), (5, 5, 6, 5)],
)
def test_the_candidate_count_is_rounded_down_and_at_most_all_stored(
    stored: int, count: int, multiplier: float, wanted: int
) -> None:
    assert candidate_count(stored, count, multiplier) == wanted
