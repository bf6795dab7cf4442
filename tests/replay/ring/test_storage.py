"""Sharing and compression return the same bytes, and `bytes_claimed` equals the memory taken."""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.base import ReplayConfig
from replay.memory import settle_capacities
from replay.ring.retention import make_ring
from replay.ring.ring import Ring
from replay.ring.storage import CompressedStorage, PlainStorage, storage_class
from replay.trajectory import Arrays, Field, TrajectoryContract
from tests.builders import trajectory_contract
from tests.replay.ring.support import (
    RETENTIONS,
    Environment,
    LightAndHeavy,
    check_ring,
    check_window,
    drawn_environments,
    raw,
    ring_of,
)
from tests.replay.support import context, resident_bytes

ATARI = trajectory_contract(20, (84, 84), "uint8", 4, 6)
FORMS = pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_trajectories_in_any_order_are_read_byte_for_byte(data: st.DataObject) -> None:
    contract, generator, environments = drawn_environments(data)
    compress = data.draw(st.booleans(), "compress")
    capacity = data.draw(st.integers(1, 8), "capacity")
    memory = None
    if data.draw(st.booleans(), "size in bytes"):
        memory = storage_class(ReplayConfig("standard", 0, 1.0, compress=compress)).most_bytes(contract, capacity)
    kept = data.draw(st.sampled_from(RETENTIONS), "retention")
    ring = ring_of(contract, capacity, memory=memory, compress=compress, **kept)
    offered: dict[int, Arrays] = {}
    for number in data.draw(st.lists(st.integers(0, len(environments) - 1), max_size=25), "order"):
        trajectory = environments[number].next()
        if generator.random() < 0.1:  # not inserted, as if lost
            continue
        slot = ring.insert(trajectory)
        offered[ring.inserted] = trajectory
        assert slot is None or ring._inserted_at[slot] == ring.inserted
        check_ring(ring, offered)
        check_window(ring, ring.slots, contract.unroll_length - 1, 1)
        assert ring.size >= 1
        if memory is None or ring.inserted <= capacity:
            assert ring.size == min(ring.inserted, capacity)
        assert memory is None or ring.storage.bytes_claimed <= memory


def play(ring: Ring, contract: TrajectoryContract, count: int, environments: int = 3, resets: float = 0.0) -> None:
    generator = np.random.default_rng(5)
    players = [Environment(number, contract, generator, resets) for number in range(environments)]
    for number in range(count):
        ring.insert(players[number % environments].next())


@pytest.mark.parametrize("overlap", [0, 3, 9])
@pytest.mark.parametrize("resets", [0.0, 0.2])
def test_a_ring_of_the_newest_holds_every_frame_once(resets: float, overlap: int) -> None:
    """T frames for each trajectory, S and those of burn-in more for the oldest of each environment, and a black one."""
    contract = replace(trajectory_contract(5 + overlap, (40,), "uint8", 4, 2), overlap=overlap)
    ring = ring_of(contract, 30)
    play(ring, contract, 400, environments=3, resets=resets)
    assert ring.size == 30
    assert ring.storage.pool.claimed <= 30 * 5 + 3 * (4 + overlap) + 1


def test_all_pages_are_free_after_all_trajectories_are_evicted() -> None:
    contract = trajectory_contract(5, (40,), "uint8", 4, 2)
    ring = ring_of(contract, 30)
    play(ring, contract, 100, resets=0.1)
    for slot in ring.slots.copy():
        ring._evict(int(slot))
    assert ring.size == 0
    assert ring.newest == {}
    assert ring.storage.pool.free == ring.storage.pool.claimed - 1  # the black page stays


def test_equal_values_with_different_bytes_are_not_shared() -> None:
    contract = trajectory_contract(2, (2,), "float32", 2, 2)
    ring = ring_of(contract, 4)
    first = Environment(0, contract, np.random.default_rng(0), 0.0).next()
    first["frames"][-2:] = 0.0
    second = {**first, "frames": first["frames"].copy()}
    second["frames"][:2] = -0.0
    slots = [ring.insert(first), ring.insert(second)]
    read = ring.read(np.array(slots))
    assert raw(read["frames"]) == raw(first["frames"]) + raw(second["frames"])


@FORMS
def test_bytes_claimed_are_the_memory_taken(compress: bool) -> None:
    """The system's figure for the process against the storage's."""
    claimed, taken = in_a_fresh_process(fill_with_noise, compress)
    assert taken > 80e6
    assert claimed == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize("kept", [{}, {"retention": "reservoir"}], ids=["fifo", "reservoir"])
def test_bytes_claimed_count_slots_too(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Black frames compress to almost nothing. The rest is mostly fields and the slots' overhead."""
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "0")  # a page of 2 MB, in each of twenty arrays, is 130 bytes a slot
    claimed, taken = in_a_fresh_process(fill_with_black, kept)
    assert 0.99 * taken <= claimed <= 1.08 * taken


def in_a_fresh_process(fill: Callable[..., tuple[int, int]], *arguments: Any) -> tuple[int, int]:
    """Returns `fill(*arguments)`. The present process may reuse freed memory, which the system does not see."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(fill, *arguments).result()


def fill_with_noise(compress: bool) -> tuple[int, int]:
    """Returns the bytes claimed by the storage and those taken from the system."""
    ring = ring_of(ATARI, 10**5, compress=compress)
    generator = np.random.default_rng(0)
    trajectory = {name: np.ones(shape, dtype) for name, (shape, dtype) in ATARI.fields.items()}
    noise = generator.integers(0, 256, (5, 24, 84, 84), np.uint8)
    before = resident_bytes()
    for number in range(600):
        ring.insert({**trajectory, "frames": noise[number % 5], "environment_id": np.array(number, np.int32)})
    return ring.storage.bytes_claimed, resident_bytes() - before


def fill_with_black(kept: dict[str, Any]) -> tuple[int, int]:
    contract = replace(ATARI, frame=Field((8, 8), "uint8"))
    ring = ring_of(contract, 10**6, compress=True, **kept)
    trajectory = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
    claimed, taken = [], []
    for _ in range(2):  # the first half includes memory that the process takes once
        for _ in range(15_000):
            ring.insert(trajectory)
        claimed.append(ring.storage.bytes_claimed)
        taken.append(resident_bytes())
    return claimed[1] - claimed[0], taken[1] - taken[0]


@pytest.mark.parametrize("kept", RETENTIONS, ids=["fifo", "reservoir", "elite_insertion"])
@FORMS
def test_memory_is_filled_and_never_exceeded(compress: bool, kept: dict[str, Any]) -> None:
    contract = trajectory_contract(5, (400,), "uint8", 4, 2)
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
    assert ring.size > 70  # a third of them is black and takes hardly any memory


class RisingKeys:
    """Random keys above a rising `floor`: a reservoir evicts all earlier trajectories first, in random order."""

    def __init__(self) -> None:
        self.floor, self._generator = 0, np.random.default_rng(4)

    def random(self) -> float:
        return self.floor + self._generator.random()


def fill_with_black_then_noise(memory: int, kept: dict[str, Any]) -> Ring:
    """Returns a compressed ring that was filled with black frames, then with noise twice. `actions` of noise start at 1."""
    keys = RisingKeys()
    config = ReplayConfig("standard", 0, 1.0, memory=memory, compress=True, **kept)
    (settled,) = settle_capacities([config], ATARI, 1)
    ring = make_ring(settled, replace(context(), contract=ATARI, generator=keys))  # type: ignore[arg-type]
    black = {name: np.zeros(shape, dtype) for name, (shape, dtype) in ATARI.fields.items()}
    noise = np.random.default_rng(0).integers(0, 256, (7, *black["frames"].shape), np.uint8)
    for number in range(memory // 1900):  # bytes, and each takes more
        ring.insert({**black, "environment_id": np.array(number % 3, np.int32)})
    assert ring.size > 50 * settled.capacity
    for number in range(2 * settled.capacity + 5):
        keys.floor = number + 1
        numbered = {"actions": np.full(20, number + 1), "environment_id": np.array(number % 5, np.int32)}
        ring.insert({**black, **numbered, "frames": noise[number % 7]})
        assert ring.size >= settled.capacity
        assert ring.storage.bytes_claimed <= memory
    numbers = ring.storage.columns["actions"][ring.slots, 0]
    assert sorted(numbers) == list(range(number + 2 - ring.size, number + 2))
    np.testing.assert_array_equal(ring.read(ring.slots)["frames"], noise[(numbers - 1) % 7])
    return ring


@pytest.mark.parametrize("kept", [{}, {"retention": "reservoir"}], ids=["fifo", "reservoir"])
@pytest.mark.parametrize("memory", [700_000, 2_000_000])
def test_memory_holds_its_capacity_after_smaller_trajectories(memory: int, kept: dict[str, Any]) -> None:
    ring = fill_with_black_then_noise(memory, kept)  # which compares the size with the capacity after every trajectory
    assert 0 < ring.storage.bytes_claimed <= memory


def test_postponed_compaction_never_falls_below_the_capacity() -> None:
    source = LightAndHeavy()
    memory = CompressedStorage.most_bytes(source.contract, 1000)
    ring = ring_of(source.contract, 1000, memory=memory, compress=True)
    most_holes = 0
    for number in range(6000):
        ring.insert(source.next(heavy=number >= 4000))
        most_holes = max(most_holes, ring.storage.holes)
        assert ring.size >= min(ring.inserted, 1000)
    assert ring.size == 1000
    assert most_holes > 10


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")
def test_compaction_returns_memory_to_the_system() -> None:
    """The process keeps the memory of small Python objects for other objects. A reservoir evicts in random order."""
    claimed, taken = in_a_fresh_process(fill_and_measure, {"retention": "reservoir"})
    assert claimed == pytest.approx(taken, rel=0.2)  # twice as much without compaction


def fill_and_measure(kept: dict[str, Any]) -> tuple[int, int]:
    fill_with_black_then_noise(700_000, kept)  # so that the process has taken what it takes once
    before = resident_bytes()
    ring = fill_with_black_then_noise(60_000_000, kept)
    return ring.storage.bytes_claimed, resident_bytes() - before


@pytest.mark.parametrize(("kept", "earlier_code"), [*((kept, False) for kept in RETENTIONS), (RETENTIONS[1], True)], ids=str)
@FORMS
def test_a_trajectory_that_moves_keeps_its_content(
    compress: bool, kept: dict[str, Any], earlier_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of heavy trajectories rises. A second ring continues from the first one's state in parallel.

    earlier_code: the state is that of an earlier version, which never compacted.
    """
    source = LightAndHeavy()
    memory = storage_class(ReplayConfig("standard", 0, 1.0, compress=compress)).most_bytes(source.contract, 30)
    ring, copy = (ring_of(source.contract, 30, memory=memory, compress=compress, **kept) for _ in range(2))
    offered, drawn, moves = {}, Counter[int](), 0
    with monkeypatch.context() as before:
        if earlier_code:
            before.setattr(Ring, "_must_close_holes", lambda ring: False)
        for number in range(200):
            offered[ring.inserted + 1] = source.next(heavy=number > 195)
            ring.insert(offered[ring.inserted + 1])
    copy.load_state_dict(ring.state_dict())
    for number in range(200):
        offered[ring.inserted + 1] = trajectory = source.next(heavy=source.generator.random() < number / 100)
        slots = dict(zip(ring._inserted_at[ring.slots].tolist(), ring.slots.tolist(), strict=True))
        assert ring.insert(trajectory) == copy.insert(trajectory)
        moves += sum(slots.get(int(ring._inserted_at[slot]), slot) != slot for slot in ring.slots)
        assert ring.size >= 30 or (earlier_code and number < 50)
        assert ring.storage.bytes_claimed == copy.storage.bytes_claimed <= memory
        for one in (ring, copy):
            if number % 5 == 0:
                check_ring(one, offered)
            for environment, slot in one.newest.items():
                assert offered[int(one._inserted_at[slot])]["environment_id"] == environment
            assert one.draws[one.slots].tolist() == [drawn[inserted] for inserted in one._inserted_at[one.slots].tolist()]
            one.give(one.slots[::3], source.contract.allocate(len(one.slots[::3])))
        drawn.update(ring._inserted_at[ring.slots[::3]].tolist())
    assert moves > 10


def test_a_key_below_an_evicted_one_is_rejected_even_if_it_fits() -> None:
    """Otherwise small trajectories would be over-represented."""
    contract = trajectory_contract(5, (400,), "uint8", 1, 2)
    keys = iter([0.5, 0.9, 0.3, 0.2, 0.4])
    made_in = replace(context(), contract=contract, generator=SimpleNamespace(random=lambda: next(keys)))  # type: ignore[arg-type]
    memory = CompressedStorage.most_bytes(contract, 2) + 2500
    ring = make_ring(ReplayConfig("standard", 2, 1.0, retention="reservoir", memory=memory, compress=True), made_in)
    small = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
    noise = np.random.default_rng(0).integers(0, 256, small["frames"].shape, np.uint8)
    large = {**small, "frames": noise}
    slots = [ring.insert(trajectory) for trajectory in (large, large, large, small, small)]
    assert slots == [0, 1, None, None, 2]
