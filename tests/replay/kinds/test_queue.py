"""The queue gives each trajectory once, in the order in which they came, and counts what it had to drop."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.kinds.queue import QueueReplay
from tests.builders import trajectory_contract

CONTRACT = trajectory_contract(unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=2)


def insert(queue: QueueReplay, number: int) -> None:
    """A trajectory that has its number in every field."""
    trajectory = CONTRACT.allocate(1)
    for array in trajectory.values():
        array[:] = number if array.dtype != bool else number % 2
    queue.insert({name: array[0] for name, array in trajectory.items()})


def sample(queue: QueueReplay, count: int) -> list[int]:
    """Numbers of the trajectories that came out; every field of a column must belong to the same one."""
    out = CONTRACT.allocate(count, poison=True)
    queue.sample(count, out)
    numbers = out["environment_id"]
    for array in out.values():
        wanted = numbers if array.dtype != bool else numbers % 2
        assert (wanted.astype(array.dtype) == array.T).all()
    return numbers.tolist()


def test_first_in_first_out() -> None:
    queue = QueueReplay(CONTRACT, capacity=5, share=1)
    for number in range(5):
        insert(queue, number)
    assert [sample(queue, 2), sample(queue, 1), sample(queue, 2)] == [[0, 1], [2], [3, 4]]


def test_each_is_given_exactly_once_around_the_ring() -> None:
    queue = QueueReplay(CONTRACT, capacity=5, share=3)
    given_out: list[int] = []
    for number in range(40):
        insert(queue, number)
        if queue.can_sample(3):
            given_out += sample(queue, 3)
    assert given_out == list(range(39))
    assert queue.dropped == 0


def test_a_full_queue_drops_its_oldest_and_counts() -> None:
    queue = QueueReplay(CONTRACT, capacity=3, share=1)
    for number in range(5):
        assert queue.has_room() is (number < 3)
        insert(queue, number)
    assert queue.dropped == 2
    assert sample(queue, 3) == [2, 3, 4]
    assert queue.has_room()


def test_it_holds_at_least_one_batch_s_share() -> None:
    queue = QueueReplay(CONTRACT, capacity=1, share=6)
    assert queue.capacity == 6
    for number in range(6):
        insert(queue, number)
    assert sample(queue, 6) == [0, 1, 2, 3, 4, 5]


def test_more_than_is_waiting_is_refused_and_nothing_lost() -> None:
    queue = QueueReplay(CONTRACT, capacity=3, share=1)
    insert(queue, 8)
    assert queue.can_sample(1)
    assert not queue.can_sample(2)
    with pytest.raises(RuntimeError, match="wanted 2 trajectories, 1 are waiting"):
        sample(queue, 2)
    assert sample(queue, 1) == [8]


def test_it_keeps_copies() -> None:
    queue = QueueReplay(CONTRACT, capacity=2, share=1)
    slot = {name: np.zeros(field.shape, field.dtype) for name, field in CONTRACT.fields.items()}
    queue.insert(slot)
    for array in slot.values():
        array[...] = 1
    assert sample(queue, 1) == [0]


def test_numbers_tell_what_waits_and_what_was_dropped_since_they_were_read() -> None:
    queue = QueueReplay(CONTRACT, capacity=3, share=1)
    for number in range(5):
        insert(queue, number)
    assert [queue.metrics(), queue.metrics()] == [{"waiting": 3, "dropped": 2}, {"waiting": 3, "dropped": 0}]
    insert(queue, 5)
    assert queue.metrics() == {"waiting": 3, "dropped": 1}


def test_its_columns_are_fresh() -> None:
    assert not QueueReplay.gives_replayed


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 4), max_size=30))
def test_any_sequence_equals_a_plain_deque(capacity: int, share: int, takes: list[int]) -> None:
    """takes: 0 inserts the next trajectory, n > 0 draws n if there are as many."""
    queue, model = QueueReplay(CONTRACT, capacity, share), deque[int](maxlen=max(capacity, share))
    number = dropped = 0
    for take in takes:
        if take == 0:
            dropped += len(model) == model.maxlen
            insert(queue, number)
            model.append(number)
            number += 1
        elif queue.can_sample(take):
            assert sample(queue, take) == [model.popleft() for _ in range(take)]
        assert queue.can_sample(take) is (len(model) >= take)
        assert queue.has_room() is (len(model) < queue.capacity)
        assert queue.dropped == dropped
