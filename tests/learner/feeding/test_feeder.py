"""Between workers and replays no trajectory is lost, doubled or mixed up, and every slot returns once."""

from __future__ import annotations

import numpy as np
import pytest

from learner.feeding import feeder as module
from learner.metrics.statistics import EndedEpisode
from replay.trajectory import poison_arrays
from tests.learner.support import SLOTS, feeder_of, mixture_of, never, numbers_of, take
from workers import WorkerError


@pytest.mark.parametrize("prepared_batches", [0, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("blocks", "at_once"), [(1, 1), (2, 1), (4, 4)])
def test_fresh_trajectories_arrive_once_in_order_and_intact(
    batch_size: int, blocks: int, at_once: int, prepared_batches: int
) -> None:
    mixture = mixture_of(("queue", 1, 1.0), batch_size=batch_size)
    feeder, workers, inserted = feeder_of(mixture, blocks, at_once, prepared_batches)
    feeder.start()
    given = [number for _ in range(30) for number in take(feeder)]
    feeder.stop()
    assert given == list(range(30 * batch_size))
    assert inserted == list(range(len(inserted)))
    assert len(given) <= len(inserted) <= workers.written


def test_every_replay_gets_every_trajectory() -> None:
    feeder, _, inserted = feeder_of(mixture_of(("queue", 1, 0.5), ("standard", 40, 0.5), batch_size=6))
    fresh, replayed = [], set()
    for _ in range(40):
        batch = feeder.next_batch(never)
        numbers = np.array(numbers_of(batch))
        assert batch is not None
        fresh += numbers[~batch.host.is_replay].tolist()
        replayed |= set(numbers[batch.host.is_replay].tolist())
        assert max(numbers) < len(inserted)
    assert fresh == list(range(120))
    assert len(replayed) > 60


def test_a_block_returns_once_after_its_last_trajectory() -> None:
    feeder, workers, inserted = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2), blocks=1)
    feeder.next_batch(never)
    assert (len(inserted), workers.released) == (2, [])
    for _ in range(12):
        feeder.next_batch(never)
        assert len(workers.released) == len(inserted) // SLOTS


def test_workers_wait_while_the_queue_is_full() -> None:
    """A queue of two shares of one: the third trajectory stays in its slot, and no other block is polled."""
    mixture = mixture_of(("queue", 2, 1.0), batch_size=1)
    feeder, workers, inserted = feeder_of(mixture, blocks=2)
    assert take(feeder) == [0]
    assert (inserted, workers.released) == ([0, 1], [])
    polls = len(workers.timeouts)
    assert take(feeder) == [1]
    assert (inserted, len(workers.released)) == ([0, 1, 2], 1)
    assert len(workers.timeouts) == polls
    assert mixture.replays[0].dropped == 0  # type: ignore[attr-defined]


def test_a_batch_whose_data_is_there_does_not_wait() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("standard", 10, 1.0), batch_size=2))
    feeder.next_batch(never)
    assert workers.timeouts.pop() in (0.0, module.POLL_SECONDS)
    workers.timeouts.clear()
    for _ in range(5):
        feeder.next_batch(never)
    assert workers.timeouts == [0.0] * 5


def test_two_queues_of_different_ratios_never_block_each_other() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 0.8), ("queue", 1, 0.2), batch_size=5))
    for _ in range(50):
        assert len(take(feeder)) == 5
        assert len(workers.timeouts) < 1000


def test_a_replay_is_filled_before_it_is_sampled() -> None:
    feeder, _, inserted = feeder_of(mixture_of(("queue", 1, 0.5), ("standard", 20, 0.5), batch_size=2, fill_in_factor=0.5))
    feeder.next_batch(never)
    assert len(inserted) == 10


def test_a_stop_ends_waiting_for_trajectories() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2), blocks=0)
    answers = iter([False, False, True])
    assert feeder.next_batch(lambda: next(answers)) is None
    assert workers.timeouts == [0.0, module.POLL_SECONDS, module.POLL_SECONDS]
    assert module.POLL_SECONDS <= 1


def test_arrivals_belong_to_the_batch_they_arrived_for() -> None:
    feeder, _, inserted = feeder_of(mixture_of(("queue", 7, 1.0), batch_size=2), at_once=2)
    counted = 0
    for _ in range(20):
        batch = feeder.next_batch(never)
        assert batch is not None
        new = inserted[counted:]
        assert batch.arrivals.trajectories == len(new)
        assert batch.arrivals.episodes == [
            EndedEpisode(number, number, environment=number) for number in new if number
        ]  # a length of 0 marks no end
        counted = len(inserted)
    assert counted > 40


def test_the_memory_of_a_batch_is_reused_only_after_its_release() -> None:
    feeder, _, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2))
    first, second = feeder.next_batch(never), feeder.next_batch(never)
    assert first is not None
    assert second is not None
    assert (numbers_of(first), numbers_of(second)) == ([0, 1], [2, 3])
    first.release()
    poison_arrays(first.host.columns)
    third = feeder.next_batch(never)
    assert third is not None
    assert third.host.columns["frames"] is first.host.columns["frames"]
    assert (numbers_of(second), numbers_of(third)) == ([2, 3], [4, 5])


def test_a_batch_is_starved_if_it_waited_for_trajectories() -> None:
    mixture = mixture_of(("queue", 6, 1.0), batch_size=2)
    feeder, workers, _ = feeder_of(mixture)
    workers.stalled.set()

    def go_on() -> bool:
        workers.stalled.clear()
        return False

    batches = [feeder.next_batch(go_on), feeder.next_batch(never)]
    assert [batch and batch.starved for batch in batches] == [True, False]


def test_the_feeder_s_time_is_counted_by_stage() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2))
    workers.stalled.set()
    answers = iter([False, True])
    assert feeder.next_batch(lambda: next(answers)) is None
    waited, inserting, sampling, room = feeder.seconds
    assert waited >= 0.9 * module.POLL_SECONDS > inserting
    assert (sampling, room) == (0, 0)
    workers.stalled.clear()
    take(feeder)
    assert feeder.seconds[2] > 0


def test_a_worker_error_reaches_the_learner() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2))
    workers.failure = WorkerError("worker 1 failed")
    with pytest.raises(WorkerError, match="worker 1 failed"):
        feeder.next_batch(never)


def test_slots_that_are_held_go_back_together_when_weights_were_published() -> None:
    """So no worker of an on-policy agent begins a trajectory with the weights of before."""
    feeder, workers, inserted = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2 * SLOTS), hold_slots=True)
    for update in range(3):
        assert take(feeder) == list(range(2 * SLOTS * update, 2 * SLOTS * (update + 1)))
        assert (workers.free, len(inserted)) == ([], 2 * SLOTS * (update + 1))
        assert len(workers.released) == 2 * update
        feeder.release_held()
        feeder.release_held()  # nothing is left to give back
        assert len(workers.released) == 2 * (update + 1)
