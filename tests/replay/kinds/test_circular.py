"""A circular replay gives batches in the recorded order, keeps those that it still needs, and continues as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay import check_replays, make_mixture, parse_replay_parameters, replay_bytes
from replay.base import ReplayConfig
from replay.kinds.circular import CircularReplay
from tests.agents.returns.test_gae import golden_cases
from tests.replay.support import STACKED_CONTRACT, Source, context, insert_and_sample, numbered, sample, through_a_file

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


def test_columns_are_fresh_at_their_first_use_alone() -> None:
    """3 of 5 columns come from the circular replay."""
    configs = [ReplayConfig("circular", 0, 0.6, slots=2, uses=2, staggered=False), ReplayConfig("queue", 4, 0.4)]
    mixture, source = make_mixture(configs, STACKED_CONTRACT, 5, 0.0, np.random.default_rng(0)), Source(1)
    replayed = []
    while len(replayed) < 6:
        batch = insert_and_sample(mixture, source, int(mixture.can_insert()))
        if batch is not None:
            assert batch.source.tolist() == [0, 0, 0, 1, 1]
            assert not batch.is_replay[3:].any()
            replayed.append(batch.is_replay[:3].tolist())
    assert replayed == [[used] * 3 for used in (False, False, True, True, False, False)]


@pytest.mark.parametrize("compress", [False, True])
def test_it_takes_no_more_memory_than_was_counted(compress: bool) -> None:
    config = ReplayConfig("circular", 0, 1.0, slots=3, uses=4, compress=compress)
    mixture, source = make_mixture([config], STACKED_CONTRACT, 5, 0.0, np.random.default_rng(0)), Source(1)
    (counted,) = replay_bytes([config], STACKED_CONTRACT, 5, 3)
    for _ in range(60):
        insert_and_sample(mixture, source, int(mixture.can_insert()))
    assert mixture.metrics()[0]["dropped"] == 0
    (replay,) = mixture.replays
    assert isinstance(replay, CircularReplay)
    assert replay.ring.size == 4 * 5
    assert 0 < replay.ring.storage.bytes_claimed <= counted


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('"slots": 0', "wanted slots as a whole number of batches from 1 to .*, got 0"),
        ('"uses": 1.5', "wanted uses as a whole number of updates from 1 to .*, got 1.5"),
        ('"staggered": 1', "wanted staggered as true or false, got 1"),
        ('"capacity": 4', r"wanted keys of this circular replay \(.*\), got capacity"),
        ('"memory": "1GB"', r"wanted keys of this circular replay \(.*\), got memory"),
    ],
)
def test_a_wrong_entry_is_named_with_what_was_wanted(entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        parse_replay_parameters(f'[{{"type": "circular", "sample_ratio": 1.0, {entry}}}]')
    assert "\n" not in str(refused.value)


def test_a_share_that_is_no_whole_number_is_refused() -> None:
    configs = [ReplayConfig("circular", 0, 0.5, slots=1, uses=1), ReplayConfig("queue", 1, 0.5)]
    check_replays(configs, 4)
    with pytest.raises(ValueError, match=r"^replay_parameters\[0\]: wanted a sample_ratio .* got 0.5, which gives 2.5$"):
        check_replays(configs, 5)
