"""The standard replay draws uniformly with replacement from the stored trajectories."""

from __future__ import annotations

import numpy as np
import pytest

from replay.base import Replay
from replay.kinds.standard import StandardReplay
from tests.replay.support import build, context, numbered, sample


def make_replay(capacity: int, written: int = 0, min_fill: int = 1) -> Replay:
    return build("standard", capacity, written, made_in=context(min_fill=min_fill))


@pytest.mark.parametrize(("capacity", "written", "first"), [(8, 8, 0), (8, 5, 0), (8, 19, 11)])
def test_draws_are_uniform_over_stored_trajectories(capacity: int, written: int, first: int) -> None:
    """Chi-square of 8000 draws against equal counts; 30 is beyond its 99.9 % point for up to 7 degrees of freedom."""
    draws = 8000
    numbers = np.array(sample(make_replay(capacity, written), draws))
    counts = np.bincount(numbers - first, minlength=written - first)
    expected = draws / (written - first)
    assert len(counts) == written - first
    assert ((counts - expected) ** 2 / expected).sum() < 30


def test_a_ring_keeps_the_newest() -> None:
    assert set(sample(make_replay(4, written=11), 200)) == {7, 8, 9, 10}


def test_only_written_slots_are_given() -> None:
    replay = make_replay(100)
    for number in range(30):
        replay.insert(numbered(number))
        assert set(sample(replay, 50)) <= set(range(number + 1))


def test_one_batch_may_hold_a_trajectory_twice() -> None:
    assert sample(make_replay(4, written=1), 3) == [0, 0, 0]
    assert len(set(sample(make_replay(8, written=8), 8))) < 8


def test_draws_of_one_batch_are_independent() -> None:
    """Two draws of one batch agree with probability 1/8."""
    replay = make_replay(8, written=8)
    pairs = np.array([sample(replay, 2) for _ in range(2000)])
    assert np.mean(pairs[:, 0] == pairs[:, 1]) == pytest.approx(1 / 8, abs=0.03)


def test_there_is_always_room() -> None:
    replay = make_replay(2, written=5)
    assert replay.has_room()


def test_stored_trajectories_are_copies() -> None:
    replay = make_replay(2)
    slot = numbered(0)
    replay.insert(slot)
    for array in slot.values():
        array[...] = 1
    assert sample(replay, 1) == [0]


def test_the_same_generator_draws_the_same() -> None:
    assert sample(make_replay(8, written=8), 20) == sample(make_replay(8, written=8), 20)


def test_its_columns_are_replayed() -> None:
    assert StandardReplay.gives_replayed
