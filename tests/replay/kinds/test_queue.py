"""The queue gives each trajectory once, in the order of insertion, and counts the dropped ones."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.base import ReplayConfig
from replay.kinds.queue import QueueReplay
from tests.replay.support import context, numbered, sample


def queue_of(capacity: int, share: int) -> QueueReplay:
    return QueueReplay(ReplayConfig("queue", capacity), context(share=share))


def test_first_in_first_out() -> None:
    queue = queue_of(5, 1)
    for number in range(5):
        queue.insert(numbered(number))
    assert [sample(queue, 2), sample(queue, 1), sample(queue, 2)] == [[0, 1], [2], [3, 4]]


def test_each_trajectory_is_given_exactly_once_when_slots_are_reused() -> None:
    queue = queue_of(5, 3)
    given_out: list[int] = []
    for number in range(40):
        queue.insert(numbered(number))
        if queue.can_sample(3):
            given_out += sample(queue, 3)
    assert given_out == list(range(39))
    assert queue.dropped == 0


def test_a_full_queue_drops_its_oldest_and_counts() -> None:
    queue = queue_of(3, 1)
    for number in range(5):
        assert queue.has_room() is (number < 3)
        queue.insert(numbered(number))
    assert queue.dropped == 2
    assert sample(queue, 3) == [2, 3, 4]
    assert queue.has_room()


def test_the_capacity_is_at_least_one_batch_s_share() -> None:
    queue = queue_of(1, 6)
    assert queue.capacity == 6
    for number in range(6):
        queue.insert(numbered(number))
    assert sample(queue, 6) == [0, 1, 2, 3, 4, 5]


def test_a_sample_larger_than_the_queue_is_refused_and_loses_nothing() -> None:
    queue = queue_of(3, 1)
    queue.insert(numbered(8))
    assert queue.can_sample(1)
    assert not queue.can_sample(2)
    with pytest.raises(RuntimeError, match="wanted 2 waiting trajectories, got 1"):
        sample(queue, 2)
    assert sample(queue, 1) == [8]


def test_stored_trajectories_are_copies() -> None:
    queue = queue_of(2, 1)
    slot = numbered(0)
    queue.insert(slot)
    for array in slot.values():
        array[...] = 1
    assert sample(queue, 1) == [0]


def test_metrics_count_waiting_and_newly_dropped_trajectories() -> None:
    queue = queue_of(3, 1)
    for number in range(5):
        queue.insert(numbered(number))
    assert [queue.metrics(), queue.metrics()] == [{"waiting": 3, "dropped": 2}, {"waiting": 3, "dropped": 0}]
    queue.insert(numbered(5))
    assert queue.metrics() == {"waiting": 3, "dropped": 1}


def test_its_columns_are_fresh() -> None:
    assert not QueueReplay.gives_replayed


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 4), max_size=30))
def test_any_sequence_equals_a_plain_deque(capacity: int, share: int, takes: list[int]) -> None:
    """takes: 0 inserts the next trajectory, n > 0 draws n if n are waiting."""
    queue, model = queue_of(capacity, share), deque[int](maxlen=max(capacity, share))
    number = dropped = 0
    for take in takes:
        if take == 0:
            dropped += len(model) == model.maxlen
            queue.insert(numbered(number))
            model.append(number)
            number += 1
        elif queue.can_sample(take):
            assert sample(queue, take) == [model.popleft() for _ in range(take)]
        assert queue.can_sample(take) is (len(model) >= take)
        assert queue.has_room() is (len(model) < queue.capacity)
        assert queue.dropped == dropped
