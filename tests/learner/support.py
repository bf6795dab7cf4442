"""Workers without processes that number what they fill, and feeders on top of them."""

from __future__ import annotations

import threading

import numpy as np

from learner.feeding.background import make_feeder
from learner.feeding.feeder import Feeder, PreparedBatch
from replay import Mixture, ReplayConfig, make_mixture
from replay.trajectory import poison_arrays
from tests.builders import trajectory_contract
from workers import Block, WorkerError, Workers

CONTRACT = trajectory_contract(unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=2)
SLOTS = 3  # in a block


class NumberingWorkers(Workers):
    """Fills free blocks with trajectories that are numbered from 0; poisons a block that was given back.

    An episode ends in each of them, with its number as the return. stalled: nothing is filled until it is cleared.
    """

    def __init__(self, blocks: int, at_once: int = 1) -> None:
        self.slots = CONTRACT.allocate(blocks * SLOTS)
        self.at_once = at_once
        self.free = [Block(number, 0, number * SLOTS, SLOTS) for number in range(blocks)]
        self.released: list[Block] = []
        self.timeouts: list[float] = []
        self.written = 0
        self.failure: WorkerError | None = None
        self.stalled = threading.Event()

    def prepare(self) -> None:
        pass

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
        if self.stalled.is_set() or not self.free:
            threading.Event().wait(timeout)
            return []
        filled, self.free = self.free[: self.at_once], self.free[self.at_once :]
        for block in filled:
            for slot in range(block.first_slot, block.first_slot + SLOTS):
                for array in self.slots.values():
                    array[slot] = self.written if array.dtype != bool else self.written % 2
                self.slots["episode_length"][slot, :-1] = 0
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


def feeder_of(
    mixture: Mixture, blocks: int = 2, at_once: int = 1, prepared_batches: int = 0, *, hold_slots: bool = False
) -> tuple[Feeder, NumberingWorkers, list[int]]:
    """A feeder, its workers, and the numbers that were inserted."""
    workers = NumberingWorkers(blocks, at_once)
    inserted: list[int] = []
    insert = mixture.insert

    def listen(trajectory: dict[str, np.ndarray]) -> None:
        inserted.append(int(trajectory["environment_id"]))
        insert(trajectory)

    mixture.insert = listen  # type: ignore[assignment, method-assign]
    return make_feeder(workers, mixture, prepared_batches, pinned=False, hold_slots=hold_slots), workers, inserted


def never() -> bool:
    return False


def numbers_of(batch: PreparedBatch | None) -> list[int]:
    """Numbers of a batch's trajectories; every field of a column must belong to the same one."""
    assert batch is not None
    numbers = batch.host.columns["environment_id"]
    for name, array in batch.host.columns.items():
        wanted = numbers if array.dtype != bool else numbers % 2
        rows = array.T[-1:] if name == "episode_length" else array.T
        np.testing.assert_array_equal(rows, np.broadcast_to(wanted.astype(array.dtype), rows.shape), err_msg=name)
    return list(numbers.tolist())


def take(feeder: Feeder) -> list[int]:
    """Numbers of the next batch, which is released."""
    batch = feeder.next_batch(never)
    numbers = numbers_of(batch)
    assert batch is not None
    batch.release()
    return numbers
