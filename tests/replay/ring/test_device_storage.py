"""Frames on a device are the frames that host memory would hold, byte for byte, and nothing else changes.

Without a GPU the device is the CPU: all but the streams is the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import Mixture, ReplayConfig, make_mixture
from replay.ring.device_storage import DeviceStorage
from replay.ring.pages import DevicePagePool
from replay.ring.retention import make_ring
from replay.ring.ring import Ring
from replay.ring.storage import PlainStorage
from replay.trajectory import TrajectoryContract, make_batch, poison_arrays
from tests.replay.ring.test_storage import (
    RETENTIONS,
    Environment,
    LightAndHeavy,
    check_last_steps,
    check_ring,
    drawn_environments,
    raw,
)
from tests.replay.ring.test_storage import encode as encode_rewards
from tests.replay.support import context
from tests.replay.test_init import KINDS
from tests.replay.test_state import CONTRACT, FORMS, Source, assert_same, encode, through_a_file, turn

DEVICES = [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]
PLAIN_FORMS = [name for name in FORMS if "compress" not in name]
REPLAYING = [name for name in KINDS if name != "queue"]


def ring_on(device: torch.device | None, contract: TrajectoryContract, capacity: int, **how: Any) -> Ring:
    """A ring whose frames lie on this device; None: in host memory."""
    more = {"dist_function": "kl_policy"} if "insert_strategy" in how else {}
    config = ReplayConfig("standard", capacity, 1.0, device="cuda" if device else "cpu", **how, **more)
    made_in = replace(context(encode_rewards), contract=contract)
    return make_ring(config, replace(made_in, device=device) if device else made_in)


def mixture_on(device: torch.device | None, name: str, form: str, seed: int = 1, first: bool = True) -> Mixture:
    """A queue and a replay whose frames lie on this device; first: the replay comes before the queue."""
    kind, more = KINDS[name]
    place = "cuda" if device else "cpu"
    replaying = ReplayConfig(kind, sample_ratio=0.6, device=place, **{**FORMS[form], **more})
    configs = [replaying, ReplayConfig("queue", 12, 0.4)][:: 1 if first else -1]
    generator = np.random.default_rng(seed)
    return make_mixture(configs, CONTRACT, 5, 0.2, generator, encode=encode, device=device or torch.device("cpu"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_play_in_any_order_comes_back_as_from_host_memory(data: st.DataObject) -> None:
    """Same slots, same sharing, same bytes, whatever comes in and goes out."""
    contract, generator, environments = drawn_environments(data)
    capacity = data.draw(st.integers(1, 8), "capacity")
    told_in_bytes = data.draw(st.booleans(), "told in bytes")
    memory = PlainStorage.most_bytes(contract, capacity) if told_in_bytes else None
    kept = data.draw(st.sampled_from(RETENTIONS), "retention")
    host = ring_on(None, contract, capacity, memory=memory, **kept)
    rings = [ring_on(device, contract, capacity, memory=memory, **kept) for device in DEVICES]
    offered: dict[int, Any] = {}
    for number in data.draw(st.lists(st.integers(0, len(environments) - 1), max_size=25), "order"):
        trajectory = environments[number].next()
        if generator.random() < 0.1:  # lost on its way
            continue
        slot = host.insert(trajectory)
        offered[host.inserted] = trajectory
        for ring in rings:
            slot_memory = {name: array.copy() for name, array in trajectory.items()}
            assert ring.insert(slot_memory) == slot
            poison_arrays(slot_memory)  # the worker writes the next one
            assert ring.storage.bytes_claimed == host.storage.bytes_claimed
            check_ring(ring, offered)
            check_last_steps(ring)
            assert isinstance(ring.read_window(ring.slots, 0, 1)["frames"], torch.Tensor)
            assert isinstance(ring.read(ring.slots)["frames"], torch.Tensor)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pages were read from a device, each time."""
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


def test_nothing_is_read_back_to_see_what_is_shared(gathered: list[int]) -> None:
    """Only after a state was loaded, once for each environment."""
    contract = TrajectoryContract(5, (40,), "uint8", 4, 2)
    players, others = (
        [Environment(number, contract, np.random.default_rng(number + first), 0.1) for number in range(3)] for first in (0, 9)
    )
    ring, copy = (ring_on(torch.device("cpu"), contract, 10) for _ in range(2))
    play(ring, players, 50)
    assert gathered == []
    play(copy, others, 50)  # what it keeps of these is forgotten
    copy.load_state_dict(ring.state_dict())
    elsewhere = ring_on(None, contract, 10)
    elsewhere.load_state_dict(ring.state_dict())
    for number in range(30):
        trajectory = players[(number + 2) % 3].next()
        assert copy.insert(trajectory) == elsewhere.insert(trajectory)
        assert_same(copy.state_dict(), elsewhere.state_dict())
    assert gathered == [4, 4, 4]


def test_only_the_frames_of_a_window_are_read(gathered: list[int]) -> None:
    contract = TrajectoryContract(5, (40,), "uint8", 4, 2)
    ring = ring_on(torch.device("cpu"), contract, 10)
    play(ring, [Environment(0, contract, np.random.default_rng(1), 0.1)], 10)
    ring.read_window(ring.slots[:3], 2, 2)
    assert gathered == [3 * (4 + 2)]


def test_last_frames_are_kept_of_the_newest_trajectories_alone() -> None:
    contract = TrajectoryContract(5, (40,), "uint8", 4, 2)
    players = [Environment(number, contract, np.random.default_rng(number), 0.1) for number in range(9)]
    ring = ring_on(torch.device("cpu"), contract, 6)
    for player in (*players[:3] * 8, *players[3:]):
        ring.insert(player.next())
        assert isinstance(ring.storage, DeviceStorage)
        assert sorted(ring.storage._kept) == sorted(ring.newest.values())


@pytest.mark.parametrize("kept", RETENTIONS, ids=["fifo", "reservoir", "elite_insertion"])
def test_trajectories_change_their_slots_as_in_host_memory(kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = LightAndHeavy()
    memory = PlainStorage.most_bytes(source.contract, 20)
    host, *rings = (ring_on(device, source.contract, 20, memory=memory, **kept) for device in (None, *DEVICES))
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
    """The same generators draw from host memory and from a device; rows of frames that nobody writes reach no batch."""
    for device in DEVICES:
        mixtures = mixture_on(None, name, form, first=first), mixture_on(device, name, form, first=first)
        source = Source(3)
        for _ in range(30):
            trajectory = source.next()
            for mixture in mixtures:
                mixture.insert(trajectory)
            if not mixtures[0].can_sample():
                continue
            batches = []
            for mixture in mixtures:
                host = mixture.sample(CONTRACT.allocate(5, poison=True))
                assert bool(host.device_frames) == (mixture is mixtures[1])
                batches.append(make_batch(host.columns, host.is_replay, host.source, 2, device, host.device_frames))
            for field, tensor in vars(batches[0]).items():
                assert raw(tensor) == raw(getattr(batches[1], field)), field


@pytest.mark.parametrize("form", PLAIN_FORMS)
@pytest.mark.parametrize("name", ["standard", "reservoir", "elite_inserting", "attentive"])
@pytest.mark.parametrize("to_device", [True, False])
def test_what_was_saved_goes_on_elsewhere(name: str, form: str, to_device: bool) -> None:
    """From host memory to a device and back; the files are the same."""
    for device in DEVICES:
        before, after = (None, device) if to_device else (device, None)
        original, source = mixture_on(before, name, form), Source(4)
        for _ in range(30):
            turn(original, source, 1)
        state = through_a_file(original.state_dict())
        copy = mixture_on(after, name, form, seed=99)
        for _ in range(10):
            turn(copy, Source(5), 1)
        copy.load_state_dict(state)
        assert_same(through_a_file(copy.state_dict()), state)
        for _ in range(12):
            for trajectory in (source.next(), source.next()):
                original.insert(trajectory)
                copy.insert(trajectory)
            assert original.sample().source.tolist() == copy.sample().source.tolist()
        assert_same(copy.state_dict(), original.state_dict())


def test_a_state_has_no_more_than_what_is_claimed() -> None:
    """A tensor that looked at the pool would be saved with all of it."""
    ring = ring_on(torch.device("cpu"), CONTRACT, 1000)
    ring.insert(Source(1).next())
    content = ring.state_dict()["storage"]["pool"]["bytes"]
    assert content.untyped_storage().nbytes() == ring.storage.pool.claimed * ring.storage.page_bytes
