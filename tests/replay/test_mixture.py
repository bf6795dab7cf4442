"""Every batch takes each replay's share: exact over time, with intact columns, and without a deadlock."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import Mixture, ReplayConfig, check_replays, make_mixture
from replay.batch import HostBatch
from replay.kinds.queue import QueueReplay
from replay.mixture import largest_share, next_shares
from replay.trajectory import poison_arrays
from tests.builders import trajectory_contract
from tests.replay import support
from tests.replay.support import CONTRACT, numbered, storage_of

SMALL_CONTRACT = trajectory_contract(unroll_length=1, frame_shape=(1,), frame_dtype="uint8", frames_stacked=1, action_count=1)


def mixture_of(*replays: tuple[str, int, float], batch_size: int = 10, fill_in_factor: float = 0.0) -> Mixture:
    """replays: type, capacity, sample_ratio. Their memory is poisoned."""
    configs = [ReplayConfig(*replay) for replay in replays]
    mixture = make_mixture(configs, CONTRACT, batch_size, fill_in_factor, np.random.default_rng(3))
    for replay in mixture.replays:
        poison_arrays(storage_of(replay))
    return mixture


def insert(mixture: Mixture, number: int) -> None:
    """Insert trajectory `number`, which is its environment; every other field has number % 100."""
    mixture.insert(numbered(number % 100, environment=number))


def numbers_of(batch: HostBatch) -> np.ndarray:
    """Returns the numbers of a batch's trajectories, of which every field must belong to the same one."""
    numbers = batch.columns["environment_id"]
    assert (support.numbers_of(batch.columns) == numbers % 100).all()
    return numbers


def run(mixture: Mixture, batches: int) -> list[HostBatch]:
    """Returns batches drawn as the feeder draws them. Fails if neither an insert nor a batch is possible."""
    drawn: list[HostBatch] = []
    number = 0
    for _ in range(batches):
        patience = 1000
        while not mixture.can_sample():
            assert mixture.can_insert(), "neither a batch nor room for another trajectory"
            insert(mixture, number)
            number += 1
            patience -= 1
            assert patience, "a thousand inserts and no batch"
        drawn.append(mixture.sample())
    return drawn


def shares_over_time(ratios: list[float], batch_size: int, batches: int) -> np.ndarray:
    """Returns shares `[batches, R]`."""
    values = np.array(ratios) / sum(ratios)
    credit, rows = np.zeros(len(values)), []
    for _ in range(batches):
        shares, credit = next_shares(values, batch_size, credit)
        rows.append(shares)
    return np.array(rows)


@pytest.mark.parametrize(
    ("ratios", "batch_size", "batches", "wanted"),
    [
        ([0.7, 0.2, 0.1], 8, 5 * 30, [28 * 30, 8 * 30, 4 * 30]),
        ([1 / 3] * 3, 8, 3 * 40, [8 * 40] * 3),
        ([0.333, 0.333, 0.334], 1, 1000, [333, 333, 334]),
        ([0.1] * 10, 1, 10 * 50, [50] * 10),
        ([0.5, 0.5], 10, 7, [35, 35]),
        ([0.999, 0.001], 1, 5000, [4995, 5]),
        ([1.0], 8, 3, [24]),
    ],
)
def test_ratios_are_exact_over_time(ratios: list[float], batch_size: int, batches: int, wanted: list[int]) -> None:
    shares = shares_over_time(ratios, batch_size, batches)
    assert (shares.sum(1) == batch_size).all()
    assert shares.sum(0).tolist() == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(1, 12))
def test_shares_never_stray_from_their_ratios(weights: list[int], batch_size: int) -> None:
    shares = shares_over_time([float(weight) for weight in weights], batch_size, 30)
    assert (shares >= 0).all()
    assert (shares.sum(1) == batch_size).all()
    given_so_far = np.cumsum(shares, axis=0)
    for index, weight in enumerate(weights):
        ratio = Fraction(weight, sum(weights))
        for batch, given_out in enumerate(given_so_far[:, index].tolist(), start=1):
            assert abs(given_out - ratio * batch * batch_size) < 2
        assert shares[:, index].max() <= largest_share(float(ratio), batch_size)


@pytest.mark.parametrize(
    ("ratio", "batch_size", "bound"), [(1.0, 8, 8), (0.5, 10, 6), (0.7, 8, 7), (0.01, 8, 2), (0.99, 8, 8), (0.01, 1, 1)]
)
def test_the_largest_share_is_the_exact_share_rounded_up_plus_one(ratio: float, batch_size: int, bound: int) -> None:
    assert largest_share(ratio, batch_size) == bound


def test_ties_go_to_the_earlier_replay() -> None:
    assert shares_over_time([0.5, 0.5], 1, 4).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_rounding_errors_do_not_break_ties() -> None:
    """Credits are sums of tenths, which floats cannot represent."""
    turns = shares_over_time([0.1] * 10, 1, 50).argmax(1)
    assert turns.tolist() == [*range(10)] * 5


def test_columns_are_intact_and_name_their_source() -> None:
    mixture = mixture_of(("queue", 1, 0.3), ("standard", 50, 0.5), ("queue", 1, 0.2), batch_size=10)
    for batch in run(mixture, 20):
        numbers_of(batch)
        assert batch.source.tolist() == sorted(batch.source.tolist())
        assert np.bincount(batch.source, minlength=3).tolist() == [3, 5, 2]
        np.testing.assert_array_equal(batch.is_replay, batch.source == 1)
        assert batch.is_replay.dtype == bool


def test_columns_follow_shares_that_change_from_batch_to_batch() -> None:
    mixture = mixture_of(("standard", 50, 0.7), ("queue", 1, 0.2), ("standard", 50, 0.1), batch_size=8)
    batches = run(mixture, 50)
    counts = np.array([np.bincount(batch.source, minlength=3) for batch in batches])
    assert len({tuple(row) for row in counts.tolist()}) > 1
    assert counts.sum(0).tolist() == [280, 80, 40]
    for batch in batches:
        numbers_of(batch)
        np.testing.assert_array_equal(batch.is_replay, batch.source != 1)


def test_fresh_trajectories_are_drained_once_and_in_order() -> None:
    mixture = mixture_of(("standard", 20, 0.5), ("queue", 3, 0.5), batch_size=4)
    fresh = [number for batch in run(mixture, 60) for number in numbers_of(batch)[~batch.is_replay].tolist()]
    assert fresh == list(range(120))


def test_every_trajectory_goes_into_every_replay() -> None:
    mixture = mixture_of(("standard", 200, 0.5), ("standard", 200, 0.5), batch_size=400)
    for number in range(5):
        insert(mixture, number)
    batch = mixture.sample()
    for source in (0, 1):
        assert set(numbers_of(batch)[batch.source == source]) == set(range(5))


def test_a_new_batch_does_not_change_the_previous_one() -> None:
    mixture = mixture_of(("queue", 4, 1.0), batch_size=2)
    first, second = run(mixture, 2)
    assert (numbers_of(first).tolist(), numbers_of(second).tolist()) == ([0, 1], [2, 3])


@pytest.mark.parametrize("ratios", [(0.9, 0.1), (0.5, 0.5), (0.05, 0.95), (0.34, 0.66)])
@pytest.mark.parametrize("capacity", [1, 7])
def test_two_queues_of_different_ratios_do_not_deadlock(ratios: tuple[float, float], capacity: int) -> None:
    mixture = mixture_of(("queue", capacity, ratios[0]), ("queue", capacity, ratios[1]), batch_size=6)
    batches = run(mixture, 60)
    counts = np.sum([np.bincount(batch.source, minlength=2) for batch in batches], axis=0)
    np.testing.assert_allclose(counts, 360 * np.array(ratios), atol=1)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_mixture_deadlocks(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(("queue", "standard")), min_size=1, max_size=4))
    weights = [data.draw(st.integers(1, 30)) for _ in kinds]
    batch_size = data.draw(st.integers(1, 9))
    capacities = [data.draw(st.integers(1 if kind == "queue" else 9, 40)) for kind in kinds]
    replays = [
        (kind, capacity, weight / sum(weights)) for kind, capacity, weight in zip(kinds, capacities, weights, strict=True)
    ]
    mixture = mixture_of(*replays, batch_size=batch_size, fill_in_factor=data.draw(st.sampled_from((0.0, 0.2, 1.0))))
    for batch in run(mixture, 12):
        assert len(numbers_of(batch)) == batch_size


def test_a_queue_has_room_for_its_share_if_ratios_sum_to_less_than_one() -> None:
    """Ratios of 0.333 three times are accepted. The share of a large batch is then larger than ratio times batch."""
    configs = [ReplayConfig("queue", 1, 0.333), ReplayConfig("standard", 4096, 0.333), ReplayConfig("standard", 4096, 0.333)]
    mixture = make_mixture(configs, SMALL_CONTRACT, 4096, 0.0, np.random.default_rng(0))
    queue = mixture.replays[0]
    assert isinstance(queue, QueueReplay)
    assert queue.capacity >= 1366


def test_a_full_queue_makes_the_workers_wait() -> None:
    mixture = mixture_of(("queue", 1, 0.5), ("standard", 50, 0.5), batch_size=4)
    for number in range(3):
        assert mixture.can_insert()
        insert(mixture, number)
    assert mixture.can_sample()
    assert not mixture.can_insert()
    mixture.sample()
    assert mixture.can_insert()


def test_the_queue_drops_only_while_no_batch_can_be_drawn() -> None:
    mixture = mixture_of(("queue", 1, 0.5), ("standard", 50, 0.5), batch_size=4, fill_in_factor=0.2)
    queue = mixture.replays[0]
    assert isinstance(queue, QueueReplay)
    batches = run(mixture, 10)
    assert queue.dropped == 10 - queue.capacity
    fresh = [number for batch in batches for number in numbers_of(batch)[~batch.is_replay].tolist()]
    assert fresh == list(range(queue.dropped, queue.dropped + 20))


@pytest.mark.parametrize(("factor", "needed"), [(0.0, 1), (0.2, 2), (0.25, 3), (1.0, 10)])
def test_the_fill_in_factor_is_a_fraction_of_the_capacity(factor: float, needed: int) -> None:
    mixture = mixture_of(("standard", 10, 1.0), batch_size=2, fill_in_factor=factor)
    for number in range(needed):
        assert not mixture.can_sample()
        insert(mixture, number)
    assert mixture.can_sample()


def test_the_same_seed_repeats_draws_and_replays_draw_independently() -> None:
    def draw() -> list[list[int]]:
        mixture = mixture_of(("standard", 50, 0.5), ("standard", 50, 0.5), batch_size=40)
        for number in range(50):
            insert(mixture, number)
        batch = mixture.sample()
        return [numbers_of(batch)[batch.source == source].tolist() for source in (0, 1)]

    first, second = draw()
    assert draw() == [first, second]
    assert first != second


def test_a_share_that_a_replay_cannot_hold_is_refused() -> None:
    configs = [ReplayConfig("queue", 1, 0.5), ReplayConfig("standard", 4, 0.5)]
    check_replays(configs, 8)
    with pytest.raises(ValueError, match=r"replay_parameters\[1\]: batch_size 9 .* wanted capacity >= 5, got 4"):
        check_replays(configs, 9)
    in_steps = [ReplayConfig("standard", 13, 1.0, steps=1000)]
    with pytest.raises(ValueError, match=r"batch_size 64 .* wanted steps for 64 trajectories, got 1000, which are 13$"):
        check_replays(in_steps, 64)


def test_digits_of_a_ratio_do_not_make_a_share_larger() -> None:
    """0.55 of 100 is 55.00000000000001 in binary."""
    check_replays([ReplayConfig("standard", 55, 0.55), ReplayConfig("standard", 45, 0.45)], 100)


def test_digits_of_a_ratio_never_change_a_share() -> None:
    """4e-7 of a trajectory a batch would have added up to half of one after a million batches."""
    ratios, credit = np.array([0.3333333, 0.6666667]), np.zeros(2)
    for _ in range(3):
        shares, credit = next_shares(ratios, 12, credit)
        assert shares.tolist() == [4, 8]
        assert not credit.any()
