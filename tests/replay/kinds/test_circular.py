"""A circular replay gives batches in the recorded order, keeps those that it still needs, and continues as it was."""

from __future__ import annotations

from typing import Any

import pytest

from replay.base import ReplayConfig
from replay.kinds.circular import CircularReplay
from tests.agents.returns.test_gae import golden_cases
from tests.replay.support import context, numbered, sample, through_a_file

SHARE = 3


def circular(slots: int, uses: int, **settings: Any) -> CircularReplay:
    config = ReplayConfig("circular", (slots + 1) * SHARE, 1.0, slots=slots, uses=uses, **settings)
    return CircularReplay(config, context())


def fill(replay: CircularReplay, first: int) -> int:
    """Insert numbered trajectories while there is room. Returns the number after the last."""
    while replay.has_room():
        replay.insert(numbered(first % 200, environment=first % 2))
        first += 1
    return first


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("case", golden_cases("circular_buffer.json"))
def test_each_update_gets_the_recorded_batch(case: dict[str, Any], compress: bool) -> None:
    replay = circular(case["slots"], case["uses"], staggered=case["staggered"], compress=compress)
    batches, fresh, number = [], [], 0
    for _ in range(case["inputs"]["updates"]):
        number = fill(replay, number)
        numbers = sample(replay, SHARE)
        batch = numbers[0] // SHARE
        assert numbers == [SHARE * batch + index for index in range(SHARE)]
        batches.append(batch)
        fresh.append(not replay.gives_replayed)
    assert batches == case["outputs"]["batch_of_update"]
    assert fresh == case["outputs"]["takes_fresh_batch"]


def test_a_slot_waits_for_a_whole_batch_and_a_used_one_does_not() -> None:
    replay = circular(2, 2, staggered=False)
    for number in range(SHARE):
        assert not replay.can_sample(SHARE)
        replay.insert(numbered(number))
    assert [sample(replay, SHARE), replay.can_sample(SHARE)] == [[0, 1, 2], False]
    fill(replay, SHARE)
    assert sample(replay, SHARE) == [3, 4, 5]
    assert replay.can_sample(SHARE)
    assert sample(replay, SHARE) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="wanted to give 3 trajectories .*, got a request for 2"):
        sample(replay, 2)


def test_the_oldest_waiting_trajectory_is_dropped_if_there_is_no_room() -> None:
    replay = circular(2, 3, staggered=False)
    number = fill(replay, 0)
    assert sample(replay, SHARE) == [0, 1, 2]
    for _ in range(20):
        number = fill(replay, number)
        replay.insert(numbered(number))
        number += 1
    assert sample(replay, SHARE) == [number - 3, number - 2, number - 1]
    assert sample(replay, SHARE) == [0, 1, 2], "one that is needed again is never dropped"
    assert replay.metrics()["dropped"] == 20


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("before", range(1, 14, 3))
def test_a_loaded_replay_continues_like_the_original(before: int, compress: bool) -> None:
    original, number = circular(3, 4, compress=compress), 0
    for _ in range(before):
        number = fill(original, number)
        sample(original, SHARE)
    original.insert(numbered(number))
    copy = circular(3, 4, compress=compress)
    fill(copy, 100)
    copy.load_state_dict(through_a_file(original.state_dict()))
    for start in range(number + 1, number + 60, SHARE):
        for replay in (original, copy):
            fill(replay, start)
        assert original.can_sample(SHARE) == copy.can_sample(SHARE)
        assert sample(original, SHARE) == sample(copy, SHARE)
        assert original.gives_replayed == copy.gives_replayed
