"""The standard replay draws uniformly, with replacement, from what was written, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from replay.base import ReplayConfig, ReplayContext
from replay.kinds.standard import StandardReplay
from replay.trajectory import poison_arrays
from tests.builders import trajectory_contract
from tests.replay.support import storage_of

CONTRACT = trajectory_contract(unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=2)


def make_replay(capacity: int, written: int = 0, min_fill: int = 1) -> StandardReplay:
    """Poisoned memory, then `written` trajectories that have their number in every field."""
    context = ReplayContext(CONTRACT, 1, min_fill, np.random.default_rng(7))
    replay = StandardReplay(ReplayConfig("standard", capacity, 1.0), context)
    poison_arrays(storage_of(replay))
    for number in range(written):
        insert(replay, number)
    return replay


def insert(replay: StandardReplay, number: int) -> None:
    trajectory = CONTRACT.allocate(1)
    for array in trajectory.values():
        array[:] = number if array.dtype != bool else number % 2
    replay.insert({name: array[0] for name, array in trajectory.items()})


def sample(replay: StandardReplay, count: int) -> np.ndarray:
    """Numbers of the trajectories drawn; every field of a column must belong to the same one."""
    out = CONTRACT.allocate(count, poison=True)
    replay.sample(count, out)
    numbers = out["environment_id"]
    for array in out.values():
        wanted = numbers if array.dtype != bool else numbers % 2
        assert (wanted.astype(array.dtype) == array.T).all()
    return numbers


@pytest.mark.parametrize(("capacity", "written", "first"), [(8, 8, 0), (8, 5, 0), (8, 19, 11)])
def test_draws_are_uniform_over_what_was_written(capacity: int, written: int, first: int) -> None:
    """Chi-square of 8000 draws against equal counts; 30 is beyond its 99.9 % point for up to 7 degrees of freedom."""
    draws = 8000
    numbers = sample(make_replay(capacity, written), draws)
    counts = np.bincount(numbers - first, minlength=written - first)
    expected = draws / (written - first)
    assert len(counts) == written - first
    assert ((counts - expected) ** 2 / expected).sum() < 30


def test_a_ring_keeps_the_newest() -> None:
    assert set(sample(make_replay(4, written=11), 200)) == {7, 8, 9, 10}


def test_rows_that_nobody_wrote_are_never_given() -> None:
    replay = make_replay(100)
    for number in range(30):
        insert(replay, number)
        assert set(sample(replay, 50)) <= set(range(number + 1))


def test_one_batch_may_hold_a_trajectory_twice() -> None:
    assert sample(make_replay(4, written=1), 3).tolist() == [0, 0, 0]
    assert len(set(sample(make_replay(8, written=8), 8))) < 8


def test_draws_of_one_batch_are_independent() -> None:
    """Two draws of one batch agree as often as chance says: once in eight."""
    replay = make_replay(8, written=8)
    pairs = np.stack([sample(replay, 2) for _ in range(2000)])
    assert np.mean(pairs[:, 0] == pairs[:, 1]) == pytest.approx(1 / 8, abs=0.03)


@pytest.mark.parametrize(("capacity", "asked", "needed"), [(10, 4, 4), (10, 0, 1), (3, 9, 3)])
def test_nothing_is_given_before_min_fill(capacity: int, asked: int, needed: int) -> None:
    replay = make_replay(capacity, written=needed - 1, min_fill=asked)
    assert not replay.can_sample(1)
    with pytest.raises(RuntimeError, match=f"wanted {needed} trajectories before sampling, has {needed - 1}"):
        sample(replay, 1)
    insert(replay, 0)
    assert replay.can_sample(1)
    sample(replay, 1)


def test_there_is_always_room() -> None:
    replay = make_replay(2, written=5)
    assert replay.has_room()


def test_it_keeps_copies() -> None:
    replay = make_replay(2)
    slot = {name: np.zeros(field.shape, field.dtype) for name, field in CONTRACT.fields.items()}
    replay.insert(slot)
    for array in slot.values():
        array[...] = 1
    assert sample(replay, 1).tolist() == [0]


def test_the_same_generator_draws_the_same() -> None:
    np.testing.assert_array_equal(sample(make_replay(8, written=8), 20), sample(make_replay(8, written=8), 20))


def test_its_columns_are_replayed() -> None:
    assert StandardReplay.gives_replayed
