"""Batches are prepared ahead without losing, changing or hiding anything, and no thread spins or stays behind."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from learner.feeding.background import BackgroundFeeder
from replay import Mixture
from tests.learner.support import NumberingWorkers, feeder_of, mixture_of, never, numbers_of, take
from workers import WorkerError

PATIENCE = 20.0  # seconds; on a busy machine a thread can be late


class Background:
    """Starts feeders, and stops them at the end of the test."""

    def __init__(self) -> None:
        self.started: list[BackgroundFeeder] = []

    def __call__(
        self, mixture: Mixture, most: int, depth: int = 1, **workers: Any
    ) -> tuple[BackgroundFeeder, NumberingWorkers]:
        feeder, numbering, _ = feeder_of(mixture, prepared_batches=most, **workers)
        assert isinstance(feeder, BackgroundFeeder)
        feeder.depth.now = depth
        self.started.append(feeder)
        feeder.start()
        return feeder, numbering


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    for feeder in made.started:
        feeder.stop()


def wait_until_full(feeder: BackgroundFeeder) -> None:
    with feeder._changed:
        assert feeder._changed.wait_for(lambda: len(feeder._prepared) >= feeder.depth.now, PATIENCE)


def take_many(feeder: BackgroundFeeder) -> list[list[int]]:
    return [take(feeder) for _ in range(10)]


def feeder_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feeder"]


def queue(batch_size: int = 2) -> Mixture:
    return mixture_of(("queue", 1, 1.0), batch_size=batch_size)


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_batches_are_prepared_than_the_depth_says(background: Background, depth: int) -> None:
    mixture = mixture_of(("standard", 30, 1.0), batch_size=2)
    feeder, workers = background(mixture, most=4, depth=depth)
    for _ in range(3):
        wait_until_full(feeder)
        polls = len(workers.timeouts)
        time.sleep(0.05)  # time enough to make thousands more
        assert (len(feeder._prepared), len(workers.timeouts)) == (depth, polls)
        take(feeder)


def test_the_thread_sleeps_without_trajectories(background: Background) -> None:
    feeder, workers = background(queue(), most=2, blocks=0)
    time.sleep(0.5)
    assert 1 <= len(workers.timeouts) <= 6
    assert feeder.next_batch(lambda: True) is None


def test_no_batch_changes_while_the_learner_reads_it(background: Background) -> None:
    """Meanwhile the thread prepares other batches, and workers overwrite returned slots."""
    feeder, _ = background(queue(), most=3, depth=3)
    for batch_number in range(20):
        batch = feeder.next_batch(never)
        wait_until_full(feeder)
        assert numbers_of(batch) == [2 * batch_number, 2 * batch_number + 1]
        assert batch is not None
        batch.release()


def test_memory_is_reused(background: Background) -> None:
    mixture = queue()
    feeder, _ = background(mixture, most=3, depth=3)
    for _ in range(30):
        take(feeder)
        wait_until_full(feeder)
    assert feeder._feeder.buffers.allocated <= 5  # one in use, three prepared, one in preparation


def test_arrivals_are_counted_with_the_batches(background: Background) -> None:
    feeder, workers = background(queue(batch_size=3), most=3, depth=3)
    arrived = 0
    for taken in range(1, 21):
        batch = feeder.next_batch(never)
        assert batch is not None
        arrived += batch.arrivals.trajectories
        assert arrived >= 3 * taken
        batch.release()
    feeder.stop()
    assert arrived + sum(batch.arrivals.trajectories for batch in feeder._prepared) <= workers.written


def hold_sampling(mixture: Mixture) -> threading.Event:
    """Batches are drawn only after this event."""
    go_on = threading.Event()
    sample = mixture.sample

    def wait_and_sample(out: dict[str, np.ndarray] | None = None) -> Any:
        assert go_on.wait(PATIENCE)
        return sample(out)

    mixture.sample = wait_and_sample  # type: ignore[method-assign]
    return go_on


def test_a_batch_that_is_late_although_its_data_is_there_raises_the_depth(background: Background) -> None:
    mixture = queue()
    go_on = hold_sampling(mixture)
    feeder, _ = background(mixture, most=4)
    feeder.next_batch(lambda: go_on.set() or False)  # type: ignore[func-returns-value]
    assert feeder.metrics() == {"feeder/depth": 2.0, "feeder/late_fraction": 1.0}
    wait_until_full(feeder)
    assert feeder.next_batch(never) is not None
    assert feeder.metrics() == {"feeder/depth": 2.0, "feeder/late_fraction": 0.0}
    assert feeder.metrics() == {"feeder/depth": 2.0}


def test_waiting_for_trajectories_does_not_raise_the_depth(background: Background) -> None:
    mixture = queue()
    feeder, workers, _ = feeder_of(mixture, prepared_batches=4)
    assert isinstance(feeder, BackgroundFeeder)
    background.started.append(feeder)
    workers.stalled.set()
    feeder.start()
    while not workers.timeouts[1:]:  # the thread has polled in vain
        time.sleep(0.001)
    feeder.next_batch(lambda: workers.stalled.clear() or False)  # type: ignore[func-returns-value]
    assert feeder.metrics() == {"feeder/depth": 1.0, "feeder/late_fraction": 0.0}


def test_a_stop_ends_waiting_for_trajectories(background: Background) -> None:
    feeder, _ = background(queue(), most=2, blocks=0)
    answers = iter([False, True])
    started = time.monotonic()
    assert feeder.next_batch(lambda: next(answers)) is None
    assert time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("blocks", [0, 2])
def test_no_thread_is_left(background: Background, blocks: int) -> None:
    """The thread waits for trajectories in one case, for the learner in the other."""
    feeder, _ = background(queue(), most=2, blocks=blocks)
    if blocks:
        wait_until_full(feeder)
    assert len(feeder_threads()) == 1
    feeder.stop()
    assert feeder_threads() == []
    feeder.stop()


def test_a_feeder_that_was_never_started_can_be_stopped() -> None:
    feeder, _, _ = feeder_of(queue(), prepared_batches=2)
    feeder.stop()
    assert feeder_threads() == []


def test_a_worker_error_reaches_the_learner_with_its_traceback(background: Background) -> None:
    feeder, workers = background(queue(), most=2)
    wait_until_full(feeder)
    workers.failure = WorkerError("worker 1 failed")
    with pytest.raises(WorkerError, match="worker 1 failed") as caught:
        take_many(feeder)
    assert "_receive" in "".join(traceback.format_exception(caught.value))
    feeder._thread.join(PATIENCE)
    assert feeder_threads() == []


def test_an_error_wakes_a_waiting_learner(background: Background) -> None:
    mixture = queue()
    go_on = hold_sampling(mixture)
    mixture.sample = lambda out=None: go_on.wait(PATIENCE) and 1 / 0  # type: ignore[assignment, method-assign]
    feeder, _ = background(mixture, most=2)
    with pytest.raises(ZeroDivisionError):
        feeder.next_batch(lambda: go_on.set() or False)  # type: ignore[func-returns-value]
