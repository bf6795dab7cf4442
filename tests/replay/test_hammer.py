"""One thread inserts while another samples at full speed: no trajectory is torn, lost or doubled.

Longer than the default: `python -m pytest tests/replay/test_hammer.py --hammer_seconds=60 -s`, seconds for each kind.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from replay import Encoded, Mixture, ReplayConfig, make_mixture
from replay.batch import DeviceFrames, HostBatch
from replay.trajectory import Arrays, Fields, poison_arrays
from tests.builders import trajectory_contract
from tests.replay.support import numbered, numbers_of, storage_of

ACTIONS = 3
CONTRACT = trajectory_contract(
    unroll_length=5, frame_shape=(20, 20), frame_dtype="uint8", frames_stacked=2, action_count=ACTIONS, feature_count=4
)
NUMBERS = 251  # below 256, so that a number fits in every field; prime, so that it aligns with no capacity
BATCH_SIZE = 6
SWITCH_SECONDS = 1e-5  # of a thread's turn; Python's default of 5 ms would hide most races

QUEUE = {"type": "queue", "capacity": 9}
STANDARD = {"type": "standard", "capacity": 8}
PRIORITISED = {"type": "prioritised", "capacity": 8}
CIRCULAR = {"type": "circular", "capacity": 0, "slots": 3, "uses": 4}
KINDS: dict[str, dict[str, Any]] = {
    "queue": QUEUE,
    "standard": STANDARD,
    "compressed": {**STANDARD, "compress": True},
    "on a device": {**STANDARD, "device": "cuda"},
    "reservoir": {**STANDARD, "retention": "reservoir"},
    "elite": {"type": "elite", "capacity": 14},
    "elite on a device": {"type": "elite", "capacity": 14, "device": "cuda"},
    "elite that inserts": {"type": "elite", "capacity": 8, "insert_strategy": "elite_insertion", "elite_batch_size": 3},
    "attentive": {"type": "attentive", "capacity": 14},
    "prioritised": PRIORITISED,
    "prioritised, compressed in little memory": {"type": "prioritised", "capacity": 0, "memory": 60_000, "compress": True},
    "circular": CIRCULAR,
    "circular, compressed": {**CIRCULAR, "compress": True},
    "standard that inserts": {**STANDARD, "insert_strategy": "elite_insertion", "elite_batch_size": 3},
}


def all_trajectories() -> list[Arrays]:
    """Returns a trajectory of every number."""
    return [numbered(number, number, CONTRACT) for number in range(NUMBERS)]


def intact_numbers(columns: Fields, device_frames: DeviceFrames = ()) -> np.ndarray:
    """Returns the numbers `[n]` of trajectories; fails if a field or row belongs to another one."""
    for first, frames in device_frames:
        columns["frames"][first : first + len(frames)] = frames
    numbers = numbers_of({**columns, "frames": np.asarray(columns["frames"])})
    assert (columns["environment_id"] == numbers).all()
    return numbers


def encode(trajectories: Fields) -> Encoded:
    """Returns random outputs, after checking that the trajectories to encode are intact."""
    steps = trajectories["actions"].shape[1]
    if steps == 1:  # an anchor, whose frames from before its episode are black
        frames = np.array(trajectories["frames"])
        trajectories = {**trajectories, "frames": np.where(frames == 0, frames[:, -1:], frames)}
    shape = (len(intact_numbers(trajectories)), steps)
    generator = np.random.default_rng(int(trajectories["actions"].sum()))
    return Encoded(generator.random((*shape, CONTRACT.feature_count)), generator.random((*shape, ACTIONS)))


def mixture_of(*replays: dict[str, Any]) -> Mixture:
    configs = [ReplayConfig(sample_ratio=1 / len(replays), **replay) for replay in replays]
    mixture = make_mixture(configs, CONTRACT, BATCH_SIZE, 0.0, np.random.default_rng(3), encode=encode)
    for replay in mixture.replays:
        poison_arrays(storage_of(replay))
    return mixture


class Inserter(threading.Thread):
    """Inserts trajectories in the order of their numbers whenever the mixture accepts one."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__(name="inserter", daemon=True)
        self.mixture = mixture
        self.inserted = 0
        self.error: BaseException | None = None
        self.stopping = False

    def run(self) -> None:
        trajectories = all_trajectories()
        try:
            while not self.stopping:
                if self.mixture.can_insert():
                    self.mixture.insert(trajectories[self.inserted % NUMBERS])
                    self.inserted += 1
                else:
                    time.sleep(0)
        except BaseException as error:
            self.error = error


@pytest.fixture
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    yield
    sys.setswitchinterval(before)


def update_priorities(mixture: Mixture, batch: HostBatch, numbers: np.ndarray) -> None:
    """Set priorities as a learner does. A trajectory without a used action, those of even numbers, must never be drawn."""
    if batch.tickets:
        of_priorities = batch.source == batch.tickets[0][0]
        assert (numbers[of_priorities] % 2 == 1).all()
        mixture.update_priorities(batch.tickets, np.where(numbers % 3, numbers, np.nan))


def hammer(mixture: Mixture, seconds: float) -> tuple[int, int]:
    """Insert and sample in parallel. Fails if a trajectory is torn, or a fresh one lost or doubled.

    Returns how many were inserted and given.
    """
    inserter = Inserter(mixture)
    inserter.start()
    out, given, fresh = CONTRACT.allocate(BATCH_SIZE), 0, 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and not inserter.error:
            if not mixture.can_sample():
                time.sleep(0)
                continue
            poison_arrays(out)
            batch = mixture.sample(out)
            numbers = intact_numbers(batch.columns, batch.device_frames)
            update_priorities(mixture, batch, numbers)
            for number in numbers[~batch.is_replay]:
                assert number == fresh % NUMBERS
                fresh += 1
            given += BATCH_SIZE
    finally:
        inserter.stopping = True
        inserter.join()
    if inserter.error:
        raise inserter.error
    print(f"{inserter.inserted:,} inserted, {given:,} given, none torn")
    return inserter.inserted, given


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_tear_no_trajectory(kind: str, pytestconfig: pytest.Config) -> None:
    assert min(hammer(mixture_of(KINDS[kind]), pytestconfig.getoption("--hammer_seconds"))) > 20


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize("second", [STANDARD, PRIORITISED], ids=["standard", "prioritised"])
def test_two_threads_tear_no_trajectory_of_a_mixture(second: dict[str, Any], pytestconfig: pytest.Config) -> None:
    assert min(hammer(mixture_of(QUEUE, second), pytestconfig.getoption("--hammer_seconds"))) > 20
