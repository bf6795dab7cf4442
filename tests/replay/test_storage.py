"""Whatever is shared or compressed, the same bytes come back, and the bytes claimed are the bytes taken."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.base import Encoded, ReplayConfig
from replay.retention import make_ring
from replay.ring import Ring
from replay.storage import CompressedStorage, PlainStorage, storage_class
from replay.trajectory import Arrays, TrajectoryContract
from tests.replay.support import context

ATARI = TrajectoryContract(20, (84, 84), "uint8", 4, 6)
FORMS = pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
RETENTIONS: list[dict[str, Any]] = [{}, {"retention": "reservoir"}, {"insert_strategy": "elite_insertion"}]


@dataclass
class Environment:
    """Frames as a worker writes them: after an episode's end the frames before its first one are black."""

    number: int
    contract: TrajectoryContract
    generator: np.random.Generator
    reset_probability: float

    def __post_init__(self) -> None:
        stack = self.contract.frames_stacked
        black = np.zeros(self.contract.frame_shape, self.contract.frame_dtype)
        self.stack = deque([*[black] * (stack - 1), self._frame()], maxlen=stack)
        self.black = black

    def _frame(self) -> np.ndarray:
        shape, dtype = self.contract.frame_shape, np.dtype(self.contract.frame_dtype)
        numbers = self.generator.integers(0, 3, shape)  # black, now and then
        return numbers.astype(dtype) if dtype.kind != "f" else np.where(numbers == 1, np.nan, -0.0 * numbers).astype(dtype)

    def next(self) -> Arrays:
        rows = list(self.stack)
        for _ in range(self.contract.unroll_length):
            if self.generator.random() < self.reset_probability:
                self.stack.extend([self.black] * self.contract.frames_stacked)
            self.stack.append(self._frame())
            rows.append(self.stack[-1])
        trajectory = {
            name: self.generator.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
            for name, (shape, dtype) in self.contract.fields.items()
        }
        return {**trajectory, "frames": np.stack(rows), "environment_id": np.array(self.number, np.int32)}


def encode(trajectories: Any) -> Encoded:
    rewards = trajectories["rewards"][:, :, None]
    return Encoded(rewards, np.repeat(rewards, trajectories["behaviour_logits"].shape[2], axis=2))


def drawn_environments(data: st.DataObject) -> tuple[TrajectoryContract, np.random.Generator, list[Environment]]:
    """Any contract, and up to four environments that play by it."""
    contract = TrajectoryContract(
        data.draw(st.integers(1, 6), "unroll_length"),
        data.draw(st.sampled_from([(3,), (2, 2), (1,)]), "frame_shape"),
        data.draw(st.sampled_from(["uint8", "float32"]), "frame_dtype"),
        data.draw(st.integers(1, 4), "frames_stacked"),
        2,
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6), "seed"))
    resets = data.draw(st.sampled_from([0.0, 0.1, 0.5]), "reset_probability")
    environments = [Environment(number, contract, generator, resets) for number in range(data.draw(st.integers(1, 4)))]
    return contract, generator, environments


def ring_of(contract: TrajectoryContract, capacity: int, **settings: Any) -> Ring:
    more = {"dist_function": "kl_policy"} if "insert_strategy" in settings else {}
    config = ReplayConfig("custom", capacity, 1.0, **settings, **more)
    return make_ring(config, replace(context(encode), contract=contract))


def raw(array: np.ndarray | torch.Tensor) -> bytes:
    return torch.as_tensor(array).cpu().numpy().tobytes()


def check_ring(ring: Ring, written: dict[int, Arrays]) -> None:
    """Every stored trajectory is the one that was written into its slot, byte for byte."""
    assert sorted(ring.slots.tolist()) == sorted(written)
    read = ring.read(ring.slots)
    for column, slot in enumerate(ring.slots.tolist()):
        for name, array in written[slot].items():
            assert raw(read[name][column]) == raw(array), name


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_play_in_any_order_comes_back_byte_for_byte(data: st.DataObject) -> None:
    contract, generator, environments = drawn_environments(data)
    compress = data.draw(st.booleans(), "compress")
    capacity = data.draw(st.integers(1, 8), "capacity")
    memory = None
    if data.draw(st.booleans(), "told in bytes"):
        memory = storage_class(ReplayConfig("custom", 0, 1.0, compress=compress)).most_bytes(contract, capacity)
    kept = data.draw(st.sampled_from(RETENTIONS), "retention")
    ring = ring_of(contract, capacity, memory=memory, compress=compress, **kept)
    written: dict[int, Arrays] = {}
    for number in data.draw(st.lists(st.integers(0, len(environments) - 1), max_size=25), "order"):
        trajectory = environments[number].next()
        if generator.random() < 0.1:  # lost on its way
            continue
        slot = ring.insert(trajectory)
        if slot is not None:
            written[slot] = trajectory
        written = {slot: one for slot, one in written.items() if slot in ring.slots}
        check_ring(ring, written)
        assert ring.size >= 1
        if memory is None or ring.inserted <= capacity:
            assert ring.size == min(ring.inserted, capacity)
        assert memory is None or ring.storage.bytes_claimed <= memory


def play(ring: Ring, contract: TrajectoryContract, count: int, environments: int = 3, resets: float = 0.0) -> None:
    generator = np.random.default_rng(5)
    players = [Environment(number, contract, generator, resets) for number in range(environments)]
    for number in range(count):
        ring.insert(players[number % environments].next())


@pytest.mark.parametrize("resets", [0.0, 0.2])
def test_a_ring_of_the_newest_holds_every_frame_once(resets: float) -> None:
    """T frames for each trajectory, S more for the oldest of each environment, and a black one; episodes may end anywhere."""
    contract = TrajectoryContract(5, (40,), "uint8", 4, 2)
    ring = ring_of(contract, 30)
    play(ring, contract, 400, environments=3, resets=resets)
    assert ring.size == 30
    assert ring.storage.pool.claimed <= 30 * 5 + 3 * 4 + 1


def test_all_is_free_again_once_nothing_is_stored() -> None:
    contract = TrajectoryContract(5, (40,), "uint8", 4, 2)
    ring = ring_of(contract, 30)
    play(ring, contract, 100, resets=0.1)
    for slot in ring.slots.copy():
        ring._evict(int(slot))
    assert ring.size == 0
    assert ring.newest == {}
    assert ring.storage.pool.free == ring.storage.pool.claimed - 1  # black stays


def test_bytes_that_only_look_alike_are_not_shared() -> None:
    contract = TrajectoryContract(2, (2,), "float32", 2, 2)
    ring = ring_of(contract, 4)
    first = Environment(0, contract, np.random.default_rng(0), 0.0).next()
    first["frames"][-2:] = 0.0
    second = {**first, "frames": first["frames"].copy()}
    second["frames"][:2] = -0.0
    slots = [ring.insert(first), ring.insert(second)]
    read = ring.read(np.array(slots))
    assert raw(read["frames"]) == raw(first["frames"]) + raw(second["frames"])


@FORMS
def test_bytes_claimed_are_bytes_taken(compress: bool) -> None:
    """What the system says that a process holds, against what the storage says."""
    claimed, taken = in_a_fresh_process(fill_with_noise, compress)
    assert taken > 80e6
    assert claimed == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize("kept", [{}, {"retention": "reservoir"}], ids=["fifo", "reservoir"])
def test_bytes_claimed_count_slots_too(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Black frames compress to next to nothing: what is left is mostly fields and what a slot takes beside them."""
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "0")  # a page of 2 MB, in each of twenty arrays, is 130 bytes a slot
    claimed, taken = in_a_fresh_process(fill_with_black, kept)
    assert 0.99 * taken <= claimed <= 1.08 * taken


def in_a_fresh_process(fill: Callable[..., tuple[int, int]], *arguments: Any) -> tuple[int, int]:
    """This one's heap may have memory to use again, which the system does not see."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(fill, *arguments).result()


def fill_with_noise(compress: bool) -> tuple[int, int]:
    """Bytes claimed by the storage and taken from the system."""
    ring = ring_of(ATARI, 10**5, compress=compress)
    generator = np.random.default_rng(0)
    trajectory = {name: np.ones(shape, dtype) for name, (shape, dtype) in ATARI.fields.items()}
    noise = generator.integers(0, 256, (5, 24, 84, 84), np.uint8)
    before = _resident_bytes()
    for number in range(600):
        ring.insert({**trajectory, "frames": noise[number % 5], "environment_id": np.array(number, np.int32)})
    return ring.storage.bytes_claimed, _resident_bytes() - before


def fill_with_black(kept: dict[str, Any]) -> tuple[int, int]:
    contract = replace(ATARI, frame_shape=(8, 8))
    ring = ring_of(contract, 10**6, compress=True, **kept)
    trajectory = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
    claimed, taken = [], []
    for _ in range(2):  # what the process takes once is there after the first half
        for _ in range(15_000):
            ring.insert(trajectory)
        claimed.append(ring.storage.bytes_claimed)
        taken.append(_resident_bytes())
    return claimed[1] - claimed[0], taken[1] - taken[0]


def _resident_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Rss")


@pytest.mark.parametrize("kept", RETENTIONS, ids=["fifo", "reservoir", "elite_insertion"])
@FORMS
def test_memory_is_filled_and_never_exceeded(compress: bool, kept: dict[str, Any]) -> None:
    contract = TrajectoryContract(5, (400,), "uint8", 4, 2)
    form = CompressedStorage if compress else PlainStorage
    memory = form.most_bytes(contract, 60)
    ring = ring_of(contract, 60, memory=memory, compress=compress, **kept)
    generator = np.random.default_rng(0)
    for number in range(400):
        player = Environment(number, contract, generator, 0.0)
        trajectory = player.next()
        trajectory["frames"] *= number % 3  # every third is black, which compresses well and is shared
        ring.insert(trajectory)
        assert ring.storage.bytes_claimed <= memory
    assert ring.storage.bytes_claimed > 0.9 * memory
    assert ring.size > 70  # a third of them is black and takes hardly any of it


def test_a_small_trajectory_takes_no_place_that_a_larger_key_was_refused() -> None:
    """Else small ones would stay oftener than large ones, and the sample were not uniform any more."""
    contract = TrajectoryContract(5, (400,), "uint8", 1, 2)
    keys = iter([0.5, 0.9, 0.3, 0.2, 0.4])
    made_in = replace(context(), contract=contract, generator=SimpleNamespace(random=lambda: next(keys)))  # type: ignore[arg-type]
    memory = CompressedStorage.most_bytes(contract, 2) + 2500
    ring = make_ring(ReplayConfig("standard", 2, 1.0, retention="reservoir", memory=memory, compress=True), made_in)
    small = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
    noise = np.random.default_rng(0).integers(0, 256, small["frames"].shape, np.uint8)
    large = {**small, "frames": noise}
    slots = [ring.insert(trajectory) for trajectory in (large, large, large, small, small)]
    assert slots == [0, 1, None, None, 2]
