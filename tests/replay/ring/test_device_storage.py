"""Frames on a device equal those in host memory byte for byte, and nothing else changes.

Without a GPU the device is the CPU: all but the streams is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.batch import make_batch
from replay.ring.device_storage import DeviceStorage
from replay.ring.pages import DevicePagePool
from replay.ring.ring import Ring
from replay.ring.storage import PlainStorage
from replay.trajectory import poison_arrays
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
from tests.replay.support import (
    FORMS,
    KINDS,
    STACKED_CONTRACT,
    Source,
    insert_and_sample,
    mixture_with_queue,
    through_a_file,
)
from tests.support import same

DEVICES = [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]
PLAIN_FORMS = [name for name in FORMS if "compress" not in name]
REPLAYING = [name for name in KINDS if name != "queue"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_trajectories_in_any_order_are_read_as_from_host_memory(data: st.DataObject) -> None:
    """Slots, sharing and bytes are the same after any inserts and evictions."""
    contract, generator, environments = drawn_environments(data)
    capacity = data.draw(st.integers(1, 8), "capacity")
    size_in_bytes = data.draw(st.booleans(), "size in bytes")
    memory = PlainStorage.most_bytes(contract, capacity) if size_in_bytes else None
    kept = data.draw(st.sampled_from(RETENTIONS), "retention")
    host = ring_of(contract, capacity, memory=memory, **kept)
    rings = [ring_of(contract, capacity, memory=memory, **kept, device=device) for device in DEVICES]
    offered: dict[int, Any] = {}
    for number in data.draw(st.lists(st.integers(0, len(environments) - 1), max_size=25), "order"):
        trajectory = environments[number].next()
        if generator.random() < 0.1:  # not inserted, as if lost
            continue
        slot = host.insert(trajectory)
        offered[host.inserted] = trajectory
        for ring in rings:
            slot_memory = {name: array.copy() for name, array in trajectory.items()}
            assert ring.insert(slot_memory) == slot
            poison_arrays(slot_memory)  # the worker writes the next one
            assert ring.storage.bytes_claimed == host.storage.bytes_claimed
            check_ring(ring, offered)
            check_window(ring, ring.slots, contract.unroll_length - 1, 1)
            assert isinstance(ring.read_window(ring.slots, 0, 1)["frames"], torch.Tensor)
            assert isinstance(ring.read(ring.slots)["frames"], torch.Tensor)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of pages of each read from a device."""
    counts: list[int] = []
    gather = DevicePagePool.gather

    def count(pool: DevicePagePool, pages: np.ndarray) -> torch.Tensor:
        counts.append(len(pages))
        return gather(pool, pages)

    monkeypatch.setattr(DevicePagePool, "gather", count)
    return counts


def play(ring: Ring, players: list[Environment], count: int) -> None:
    for number in range(count):
        ring.insert(players[number % len(players)].next())


def test_sharing_reads_nothing_from_the_device(gathered: list[int]) -> None:
    """After a state was loaded, it reads once for each environment."""
    contract = trajectory_contract(5, (40,), "uint8", 4, 2)
    players, others = (
        [Environment(number, contract, np.random.default_rng(number + first), 0.1) for number in range(3)] for first in (0, 9)
    )
    ring, copy = (ring_of(contract, 10, device=torch.device("cpu")) for _ in range(2))
    play(ring, players, 50)
    assert gathered == []
    play(copy, others, 50)  # loading must forget the frames that it keeps of these
    copy.load_state_dict(ring.state_dict())
    elsewhere = ring_of(contract, 10)
    elsewhere.load_state_dict(ring.state_dict())
    for number in range(30):
        trajectory = players[(number + 2) % 3].next()
        assert copy.insert(trajectory) == elsewhere.insert(trajectory)
        assert same(copy.state_dict(), elsewhere.state_dict())
    assert gathered == [4, 4, 4]


def test_only_the_frames_of_a_window_are_read(gathered: list[int]) -> None:
    contract = trajectory_contract(5, (40,), "uint8", 4, 2)
    ring = ring_of(contract, 10, device=torch.device("cpu"))
    play(ring, [Environment(0, contract, np.random.default_rng(1), 0.1)], 10)
    ring.read_window(ring.slots[:3], 2, 2)
    assert gathered == [3 * (4 + 2)]


def test_host_memory_keeps_the_last_frames_of_the_newest_trajectories_only() -> None:
    contract = trajectory_contract(5, (40,), "uint8", 4, 2)
    players = [Environment(number, contract, np.random.default_rng(number), 0.1) for number in range(9)]
    ring = ring_of(contract, 6, device=torch.device("cpu"))
    for player in (*players[:3] * 8, *players[3:]):
        ring.insert(player.next())
        assert isinstance(ring.storage, DeviceStorage)
        assert sorted(ring.storage._kept) == sorted(ring.newest.values())


@pytest.mark.parametrize("kept", RETENTIONS, ids=["fifo", "reservoir", "elite_insertion"])
def test_compaction_moves_trajectories_as_in_host_memory(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = LightAndHeavy()
    memory = PlainStorage.most_bytes(source.contract, 20)
    host, *rings = (ring_of(source.contract, 20, memory=memory, **kept, device=device) for device in (None, *DEVICES))
    offered, closed = {}, []
    close_holes = DeviceStorage.close_holes
    monkeypatch.setattr(DeviceStorage, "close_holes", lambda storage: closed.append(close_holes(storage)) or closed[-1])
    for number in range(240):
        offered[host.inserted + 1] = trajectory = source.next(number // 40 % 2 == 1)
        slot = host.insert(trajectory)
        for ring in rings:
            assert ring.insert(trajectory) == slot
            assert ring.newest == host.newest
            check_ring(ring, offered)
            assert isinstance(ring.storage, DeviceStorage)
            assert sorted(ring.storage._kept) == sorted(ring.newest.values())
    assert sum(map(len, closed)) > 5


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("form", PLAIN_FORMS)
@pytest.mark.parametrize("name", REPLAYING)
def test_a_mixture_gives_the_same_batches(name: str, form: str, first: bool) -> None:
    """Columns of frames that are not written on the host are poisoned and reach no batch."""
    for device in DEVICES:
        mixtures = [mixture_with_queue(name, form, device=place, replay_first=first) for place in (None, device)]
        source = Source(3)
        for _ in range(30):
            trajectory = source.next()
            for mixture in mixtures:
                mixture.insert(trajectory)
            if not mixtures[0].can_sample():
                continue
            batches = []
            for mixture in mixtures:
                host = mixture.sample(STACKED_CONTRACT.allocate(5, poison=True))
                assert bool(host.device_frames) == (mixture is mixtures[1])
                batches.append(make_batch(host, STACKED_CONTRACT, device))
            one, other = ({**vars(batch), **batch.acting} for batch in batches)
            absent = {name for name, value in one.items() if value is None} | {"acting", "overlap"}
            for field in one.keys() - absent:
                assert raw(one[field]) == raw(other[field]), field


@pytest.mark.parametrize("form", PLAIN_FORMS)
@pytest.mark.parametrize("name", ["standard", "reservoir", "elite_inserting", "attentive"])
@pytest.mark.parametrize("to_device", [True, False])
def test_a_saved_replay_continues_in_the_other_memory(name: str, form: str, to_device: bool) -> None:
    """From host memory to a device and back. Both save the same files."""
    for device in DEVICES:
        before, after = (None, device) if to_device else (device, None)
        original, source = mixture_with_queue(name, form, device=before), Source(4)
        for _ in range(30):
            insert_and_sample(original, source, 1)
        state = through_a_file(original.state_dict())
        copy = mixture_with_queue(name, form, seed=99, device=after)
        for _ in range(10):
            insert_and_sample(copy, Source(5), 1)
        copy.load_state_dict(state)
        assert same(through_a_file(copy.state_dict()), state)
        for _ in range(12):
            for trajectory in (source.next(), source.next()):
                original.insert(trajectory)
                copy.insert(trajectory)
            assert original.sample().source.tolist() == copy.sample().source.tolist()
        assert same(copy.state_dict(), original.state_dict())


def test_a_state_has_claimed_pages_only() -> None:
    """A view of the pool would be saved with the whole pool."""
    ring = ring_of(STACKED_CONTRACT, 1000, device=torch.device("cpu"))
    ring.insert(Source(1).next())
    content = ring.state_dict()["storage"]["pool"]["bytes"]
    assert content.untyped_storage().nbytes() == ring.storage.pool.claimed * ring.storage.page_bytes
