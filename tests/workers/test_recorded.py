"""Workers that read the trajectories of a recording."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.recordings.recording import Cuts, open_recording
from tests.recordings import playing_at_random, record
from tests.support import same
from tests.workers.support import make_setup
from workers import RecordedWorkers, WorkerError, WorkerSetup
from workers.recorded import recorded_observations

COUNT = 4 * 6
"""Trajectories of seven steps in the recording: four streams of 39 steps."""


def setup_for(folder: Path, **settings: Any) -> WorkerSetup:
    own = {"agent": "bc", "core": "none", "worker_count": 1, "recording": str(folder), **settings}
    setup = make_setup("recorded", **own)
    if not list(folder.glob("*.npy")):
        record(folder, setup.env, playing_at_random, steps=39, environments=4)
    return setup


def workers_of(setup: WorkerSetup) -> RecordedWorkers:
    workers = RecordedWorkers(setup, setup.make_network())
    workers.weights.publish(setup.make_network(), 7)
    workers.start()
    return workers


def take(workers: RecordedWorkers, blocks: int) -> list[bytes]:
    """The observations and actions of each trajectory in the next blocks."""
    found = []
    for _ in range(blocks):
        (block,) = workers.poll(0.0)
        rows = range(block.first_slot, block.first_slot + block.slot_count)
        found += [workers.slots["frames"][row].tobytes() + workers.slots["actions"][row].tobytes() for row in rows]
        workers.release(block)
    return found


def test_all_trajectories_come_in_random_order_before_any_comes_again(tmp_path: Path) -> None:
    setup = setup_for(tmp_path)
    workers = workers_of(setup)
    slots = setup.contract.allocate(1)
    everything = []
    cuts = Cuts(open_recording(tmp_path), setup.contract)
    for index in range(len(cuts)):
        cuts.read(index, slots, 0)
        everything.append(slots["frames"][0].tobytes() + slots["actions"][0].tobytes())
    first, second = take(workers, COUNT // 4), take(workers, COUNT // 4)
    workers.stop()
    assert len(cuts) == COUNT
    assert sorted(first) == sorted(second) == sorted(everything)
    assert len({*map(tuple, (first, second, everything))}) == 3


def test_blocks_wait_until_they_are_released(tmp_path: Path) -> None:
    workers = workers_of(setup_for(tmp_path))
    blocks = [block for _ in range(4) for block in workers.poll(0.0)]
    assert [block.number for block in blocks] == [0, 1]
    workers.release(blocks[1])
    assert [block.number for block in workers.poll(0.0)] == [1]
    workers.stop()
    workers.stop()


def test_rows_carry_the_version_that_is_published(tmp_path: Path) -> None:
    setup = setup_for(tmp_path)
    workers = workers_of(setup)
    (block,) = workers.poll(0.0)
    workers.weights.publish(setup.make_network(), 9)
    (other,) = workers.poll(0.0)
    for each, version in ((block, 7), (other, 9)):
        assert (workers.slots["policy_version"][each.first_slot : each.first_slot + each.slot_count] == version).all()
    assert workers.seconds[0].sum() > 0
    workers.stop()


def test_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    """With a block that is filled, across the end of a round, and whatever the seed of the run that resumes."""
    setup = setup_for(tmp_path)
    workers = workers_of(setup)
    take(workers, 5)
    (held,) = workers.poll(0.0)
    state = copy.deepcopy(workers.state_dict())
    assert workers.steps_to_replay(state) == 0
    others = workers_of(make_setup("recorded", agent="bc", core="none", worker_count=1, recording=str(tmp_path), seed=2))
    others._seed = 12345
    others.load_state_dict(state)
    assert same(others.state_dict(), workers.state_dict())
    rows = slice(held.first_slot, held.first_slot + held.slot_count)
    assert np.array_equal(others.slots["frames"][rows], workers.slots["frames"][rows])
    for each in (workers, others):
        each.release(held)
    assert take(workers, 9) == take(others, 9)
    state["recorded"][0] += 1
    with pytest.raises(ValueError, match="^recording: wanted 25 trajectories as before, got 24$"):
        others.load_state_dict(state)
    workers.stop()
    others.stop()


def test_a_file_that_can_no_longer_be_read_ends_the_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = workers_of(setup_for(tmp_path))

    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(workers._cuts, "read", fails)
        with pytest.raises(WorkerError, match="^recording: the disk is gone$"):
            workers.poll(0.0)
    assert len([*workers.poll(0.0), *workers.poll(0.0)]) == 2
    workers.stop()


def test_numbers_that_are_not_finite_end_the_run_in_one_line(tmp_path: Path) -> None:
    setup = setup_for(tmp_path)
    for path in tmp_path.glob("*.npy"):
        records = np.load(path, mmap_mode="r+")
        records["rewards"][3] = np.nan
        records.flush()
    workers = workers_of(setup)
    with pytest.raises(WorkerError, match="^recording: wanted finite rewards, got others$"):
        take(workers, COUNT // 4)
    workers.stop()


def test_a_network_is_calibrated_with_recorded_observations(tmp_path: Path) -> None:
    setup = setup_for(tmp_path)
    found = recorded_observations(str(tmp_path), setup.spec, seed=1)
    assert found.shape == (800, *setup.spec.observation_shape)
    assert not found.equal(recorded_observations(str(tmp_path), setup.spec, seed=2))
