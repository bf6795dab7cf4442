"""Between workers and replays nothing is lost, doubled or mixed up, slots go back once, and nobody waits for ever."""

from __future__ import annotations

import numpy as np
import pytest

from learner import feeder as module
from learner.feeder import BatchFeeder
from replay import Mixture, ReplayConfig, make_mixture
from replay.mixture import HostBatch
from replay.trajectory import TrajectoryContract, poison_arrays
from workers import Block, WorkerError, Workers

CONTRACT = TrajectoryContract(unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=2)
SLOTS = 3  # in a block


class NumberingWorkers(Workers):
    """Fills free blocks with trajectories that are numbered from 0; poisons a block that was given back."""

    def __init__(self, blocks: int, at_once: int = 1) -> None:
        self.slots = CONTRACT.allocate(blocks * SLOTS)
        self.at_once = at_once
        self.free = [Block(number, 0, number * SLOTS, SLOTS) for number in range(blocks)]
        self.released: list[Block] = []
        self.timeouts: list[float] = []
        self.written = 0
        self.failure: WorkerError | None = None

    def start(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def poll(self, timeout: float) -> list[Block]:
        self.timeouts.append(timeout)
        if self.failure:
            raise self.failure
        filled, self.free = self.free[: self.at_once], self.free[self.at_once :]
        for block in filled:
            for slot in range(block.first_slot, block.first_slot + SLOTS):
                for array in self.slots.values():
                    array[slot] = self.written if array.dtype != bool else self.written % 2
                self.written += 1
        return filled

    def release(self, block: Block) -> None:
        assert block not in self.free
        poison_arrays({name: array[block.first_slot : block.first_slot + SLOTS] for name, array in self.slots.items()})
        self.released.append(block)
        self.free.append(block)


def mixture_of(*replays: tuple[str, int, float], batch_size: int, fill_in_factor: float = 0.0) -> Mixture:
    configs = [ReplayConfig(*replay) for replay in replays]
    return make_mixture(configs, CONTRACT, batch_size, fill_in_factor, np.random.default_rng(1))


def feeder_of(mixture: Mixture, blocks: int = 2, at_once: int = 1) -> tuple[BatchFeeder, NumberingWorkers, list[int]]:
    """A feeder, its workers, and the numbers its listener has heard."""
    workers = NumberingWorkers(blocks, at_once)
    heard: list[int] = []
    feeder = BatchFeeder(workers, mixture, lambda trajectory: heard.append(int(trajectory["environment_id"])))
    return feeder, workers, heard


def never() -> bool:
    return False


def numbers_of(batch: HostBatch | None) -> list[int]:
    """Numbers of a batch's trajectories; every field of a column must belong to the same one."""
    assert batch is not None
    numbers = batch.columns["environment_id"]
    for name, array in batch.columns.items():
        wanted = numbers if array.dtype != bool else numbers % 2
        np.testing.assert_array_equal(array.T, np.broadcast_to(wanted.astype(array.dtype), array.T.shape), err_msg=name)
    return list(numbers.tolist())


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("blocks", "at_once"), [(1, 1), (2, 1), (4, 4)])
def test_fresh_trajectories_arrive_once_in_order_and_intact(batch_size: int, blocks: int, at_once: int) -> None:
    feeder, workers, heard = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=batch_size), blocks, at_once)
    given = [number for _ in range(30) for number in numbers_of(feeder.next_batch(never))]
    assert given == list(range(30 * batch_size))
    assert heard == list(range(len(heard)))
    assert len(given) <= len(heard) <= workers.written


def test_every_replay_gets_every_trajectory() -> None:
    feeder, _, heard = feeder_of(mixture_of(("queue", 1, 0.5), ("standard", 40, 0.5), batch_size=6))
    fresh, replayed = [], set()
    for _ in range(40):
        batch = feeder.next_batch(never)
        numbers = np.array(numbers_of(batch))
        assert batch is not None
        fresh += numbers[~batch.is_replay].tolist()
        replayed |= set(numbers[batch.is_replay].tolist())
        assert max(numbers) < len(heard)
    assert fresh == list(range(120))
    assert len(replayed) > 60


def test_a_block_goes_back_once_after_its_last_trajectory_was_taken() -> None:
    feeder, workers, heard = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2), blocks=1)
    feeder.next_batch(never)
    assert (len(heard), workers.released) == (2, [])
    for _ in range(12):
        feeder.next_batch(never)
        assert len(workers.released) == len(heard) // SLOTS


def test_workers_wait_while_the_queue_is_full() -> None:
    """A queue of two shares of one: the third trajectory stays in its slot, and no further block is asked for."""
    mixture = mixture_of(("queue", 2, 1.0), batch_size=1)
    feeder, workers, heard = feeder_of(mixture, blocks=2)
    assert numbers_of(feeder.next_batch(never)) == [0]
    assert (heard, workers.released) == ([0, 1], [])
    polls = len(workers.timeouts)
    assert numbers_of(feeder.next_batch(never)) == [1]
    assert (heard, len(workers.released)) == ([0, 1, 2], 1)
    assert len(workers.timeouts) == polls
    assert mixture.replays[0].dropped == 0  # type: ignore[attr-defined]


def test_a_batch_at_hand_is_not_kept_waiting() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("standard", 10, 1.0), batch_size=2))
    feeder.next_batch(never)
    assert workers.timeouts.pop() in (0.0, module.POLL_SECONDS)
    workers.timeouts.clear()
    for _ in range(5):
        feeder.next_batch(never)
    assert workers.timeouts == [0.0] * 5


def test_two_queues_of_different_ratios_are_fed_for_ever() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 0.8), ("queue", 1, 0.2), batch_size=5))
    for _ in range(50):
        assert len(numbers_of(feeder.next_batch(never))) == 5
        assert len(workers.timeouts) < 1000


def test_a_replay_is_filled_before_it_gives() -> None:
    feeder, _, heard = feeder_of(mixture_of(("queue", 1, 0.5), ("standard", 20, 0.5), batch_size=2, fill_in_factor=0.5))
    feeder.next_batch(never)
    assert len(heard) == 10


def test_a_stop_is_heard_while_there_is_nothing_to_draw() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2), blocks=0)
    answers = iter([False, False, True])
    assert feeder.next_batch(lambda: next(answers)) is None
    assert workers.timeouts == [0.0, module.POLL_SECONDS, module.POLL_SECONDS]
    assert module.POLL_SECONDS <= 1


def test_a_failed_worker_is_not_hidden() -> None:
    feeder, workers, _ = feeder_of(mixture_of(("queue", 1, 1.0), batch_size=2))
    workers.failure = WorkerError("worker 1 failed")
    with pytest.raises(WorkerError, match="worker 1 failed"):
        feeder.next_batch(never)
