"""The ring counts for each slot its age and its draws since it was written."""

from __future__ import annotations

import numpy as np
import pytest

from replay.base import ReplayConfig
from replay.ring.retention import make_ring
from replay.ring.ring import Ring
from tests.replay.support import CONTRACT, context, numbered, numbers_of


def make_ring_of(capacity: int, written: int, min_fill: int = 1) -> Ring:
    ring = make_ring(ReplayConfig("standard", capacity, 1.0), context(min_fill=min_fill))
    for number in range(written):
        ring.insert(numbered(number))
    return ring


def give(ring: Ring, *slots: int, distances: list[float] | None = None) -> None:
    measured = None if distances is None else np.array(distances)
    ring.give(np.array(slots), CONTRACT.allocate(len(slots)), measured)


def test_draws_of_a_slot_are_counted_until_it_is_reused() -> None:
    ring = make_ring_of(3, written=3)
    give(ring, 0, 0, 2)
    assert ring.draws.tolist() == [2, 0, 1]
    ring.insert(numbered(3))
    assert ring.draws.tolist() == [0, 0, 1]


def test_metrics_start_anew_after_they_are_read() -> None:
    ring = make_ring_of(4, written=4)
    assert ring.metrics() == {}
    give(ring, 0, 3)
    give(ring, 0, 1, distances=[1.0, 2.0])
    wanted = {"age": (3 + 0 + 3 + 2) / 4, "draws": (1 + 1 + 2 + 1) / 4, "draws_max": 2.0, "distance": 1.5}
    assert ring.metrics() == wanted
    assert ring.metrics() == {}
    give(ring, 3)
    assert ring.metrics() == {"age": 0.0, "draws": 2.0, "draws_max": 2.0}


def test_age_counts_inserts_when_slots_are_reused() -> None:
    ring = make_ring_of(3, written=5)  # slots hold 3, 4, 2
    give(ring, 2)
    assert ring.metrics()["age"] == 2


@pytest.mark.parametrize(("multiplier", "wanted"), [(1.0, 4), (2.0, 8), (9.0, 10)])
def test_candidates_are_all_different(multiplier: float, wanted: int) -> None:
    ring = make_ring_of(20, written=10)
    for _ in range(20):
        slots = ring.candidates(4, multiplier)
        assert len(set(slots.tolist())) == len(slots) == wanted
        assert set(slots.tolist()) <= set(range(10))


def test_every_slot_is_a_candidate_as_often_as_any_other() -> None:
    """Chi-square of 4000 draws; 30 is beyond its 99.9 % point for 9 degrees of freedom (less for draws without replacement)."""
    ring = make_ring_of(20, written=10)
    counts = np.bincount(np.concatenate([ring.candidates(2, 2.0) for _ in range(1000)]), minlength=10)
    assert len(counts) == 10
    assert ((counts - 400) ** 2 / 400).sum() < 30


def test_too_few_stored_trajectories_are_given_more_than_once() -> None:
    slots = make_ring_of(20, written=3).candidates(50, 2.0)
    assert len(slots) == 50
    assert set(slots.tolist()) == {0, 1, 2}


def test_read_trajectories_are_copies() -> None:
    ring = make_ring_of(2, written=2)
    read = ring.read(np.array([1, 0]))
    ring.insert(numbered(9))
    assert numbers_of(read).tolist() == [1, 0]


def test_nothing_is_drawn_before_min_fill() -> None:
    ring = make_ring_of(10, written=3, min_fill=4)
    for draw in (lambda: ring.uniform(1), lambda: ring.candidates(1, 2.0)):
        with pytest.raises(RuntimeError, match="wanted 4 trajectories with a usable row, got 3"):
            draw()
