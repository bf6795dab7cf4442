"""One thread inserts as fast as it can while another samples: no trajectory is torn, lost or doubled.

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
from replay.trajectory import Arrays, DeviceFrames, Fields, TrajectoryContract, poison_arrays
from tests.replay.support import storage_of

CONTRACT = TrajectoryContract(
    unroll_length=5, frame_shape=(20, 20), frame_dtype="uint8", frames_stacked=2, action_count=3, feature_count=4
)
NUMBERS = 251  # a prime below 256, so that a number fits in every field and in step with nothing
BATCH_SIZE = 6
SWITCH_SECONDS = 1e-5  # between two turns of a thread; Python's own 5 ms would hide most races

QUEUE = {"type": "queue", "capacity": 9}
STANDARD = {"type": "standard", "capacity": 8}
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
    "standard that inserts": {**STANDARD, "insert_strategy": "elite_insertion", "elite_batch_size": 3},
}


def numbered() -> list[Arrays]:
    """A trajectory of every number, which stands in every field and row."""

    def filled(number: int) -> Arrays:
        fields = CONTRACT.fields.items()
        return {name: np.full(shape, number % 2 if dtype == "bool" else number, dtype) for name, (shape, dtype) in fields}

    return [filled(number) for number in range(NUMBERS)]


def numbers_of(columns: Fields, device_frames: DeviceFrames = ()) -> np.ndarray:
    """Numbers `[n]` of trajectories; fails where a field or row belongs to another one."""
    numbers = columns["actions"][:, 0]
    for first, frames in device_frames:
        columns["frames"][first : first + len(frames)] = frames
    for name, array in {**columns, "frames": np.asarray(columns["frames"])}.items():
        wanted = (numbers % 2 == 1) if array.dtype == bool else numbers.astype(array.dtype)
        if not (wanted == array.T).all():
            raise AssertionError(f"torn: {name} of the trajectories {numbers.tolist()}")
    return numbers


def encode(trajectories: Fields) -> Encoded:
    """Distances that change from call to call; what is encoded must be as intact as what is given."""
    steps = trajectories["actions"].shape[1]
    if steps == 1:  # of an anchor, frames from before its episode are black
        frames = np.array(trajectories["frames"])
        trajectories = {**trajectories, "frames": np.where(frames == 0, frames[:, -1:], frames)}
    shape = (len(numbers_of(trajectories)), steps)
    generator = np.random.default_rng(int(trajectories["actions"].sum()))
    return Encoded(generator.random((*shape, CONTRACT.feature_count)), generator.random((*shape, CONTRACT.action_count)))


def mixture_of(*replays: dict[str, Any]) -> Mixture:
    configs = [ReplayConfig(sample_ratio=1 / len(replays), **replay) for replay in replays]
    mixture = make_mixture(configs, CONTRACT, BATCH_SIZE, 0.0, np.random.default_rng(3), encode=encode)
    for replay in mixture.replays:
        poison_arrays(storage_of(replay))
    return mixture


class Inserter(threading.Thread):
    """Inserts trajectories in the order of their numbers, whenever it may."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__(name="inserter", daemon=True)
        self.mixture = mixture
        self.inserted = 0
        self.error: BaseException | None = None
        self.stopping = False

    def run(self) -> None:
        trajectories = numbered()
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


def hammer(mixture: Mixture, seconds: float) -> str:
    """Insert and sample at once; fails where a trajectory is torn, or a fresh one lost or doubled. Returns what was done."""
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
            for number in numbers_of(batch.columns, batch.device_frames)[~batch.is_replay]:
                assert number == fresh % NUMBERS
                fresh += 1
            given += BATCH_SIZE
    finally:
        inserter.stopping = True
        inserter.join()
    if inserter.error:
        raise inserter.error
    assert min(inserter.inserted, given) > 20
    return f"{inserter.inserted:,} inserted, {given:,} given, none torn"


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_tear_nothing(kind: str, pytestconfig: pytest.Config) -> None:
    print(f"{kind}:", hammer(mixture_of(KINDS[kind]), pytestconfig.getoption("--hammer_seconds")))


@pytest.mark.usefixtures("_short_turns")
def test_two_threads_tear_nothing_of_a_mixture(pytestconfig: pytest.Config) -> None:
    print("queue and standard:", hammer(mixture_of(QUEUE, STANDARD), pytestconfig.getoption("--hammer_seconds")))
