"""Sizes are read exactly and give capacities that are reached in the worst case."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replay import ReplayConfig, make_mixture, replay_bytes, settle_capacities
from replay.memory import most_bytes, parse_size
from replay.ring.storage import PAGE_OVERHEAD
from tests.builders import trajectory_contract

ATARI = trajectory_contract(20, (84, 84), "uint8", 4, 6)
SMALL = trajectory_contract(2, (3,), "uint8", 1, 2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1KB", 1000),
        ("500MB", 500_000_000),
        ("8GB", 8_000_000_000),
        ("8 GB", 8_000_000_000),
        ("2TB", 2 * 10**12),
        ("1KiB", 1024),
        ("3MiB", 3 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("1TiB", 2**40),
        ("1000TB", 10**15),
    ],
)
def test_sizes_are_decimal_or_binary(text: str, wanted: int) -> None:
    assert parse_size(text) == wanted


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", ["queue", "standard"])
def test_memory_becomes_the_capacity_that_fits_in_the_worst_case(kind: str, compress: bool) -> None:
    config = ReplayConfig(kind, 0, 1.0, memory=10**9, compress=compress)
    (settled,) = settle_capacities([config], ATARI, 8)
    assert most_bytes(config, ATARI, 1) >= ATARI.bytes_per_trajectory
    assert settled.capacity > 5000
    assert most_bytes(config, ATARI, settled.capacity) <= 10**9 < most_bytes(config, ATARI, settled.capacity + 1)


def test_a_size_in_trajectories_is_unchanged() -> None:
    configs = (ReplayConfig("queue", 9, 0.5), ReplayConfig("standard", 50, 0.5))
    assert settle_capacities(configs, ATARI, 8) == configs


@pytest.mark.parametrize(("kind", "wanted"), [("queue", 8), ("standard", 8), ("elite", 8)])
def test_memory_below_a_batch_s_share_is_refused(kind: str, wanted: int) -> None:
    enough = most_bytes(ReplayConfig(kind, 0, 1.0), SMALL, wanted)
    settle_capacities([ReplayConfig(kind, 0, 1.0, memory=enough)], SMALL, 8)
    message = (
        rf"^replay_parameters\[1\]: wanted memory for the {wanted} trajectories that a batch takes, {enough:,} bytes, got "
    )
    configs = [ReplayConfig("queue", 1, 1e-9), ReplayConfig(kind, 0, 1.0, memory=enough - 1)]
    with pytest.raises(ValueError, match=message):
        settle_capacities(configs, SMALL, 8)
    with pytest.raises(ValueError, match=message):
        make_mixture(configs, SMALL, 8, 0.0, np.random.default_rng(0), encode=lambda _: None)  # type: ignore[arg-type, return-value]


def test_a_queue_takes_what_it_allocates() -> None:
    """The queue has at least the largest share of a batch, if its capacity is smaller."""
    configs = [ReplayConfig("queue", 1, 0.5), ReplayConfig("queue", 100, 0.5)]
    mixture = make_mixture(configs, SMALL, 32, 0.0, np.random.default_rng(0))
    allocated = [sum(array.nbytes for array in queue.storage.values()) for queue in mixture.replays]  # type: ignore[attr-defined]
    assert replay_bytes(configs, SMALL, 32, 16) == allocated
    assert allocated[0] == 17 * SMALL.bytes_per_trajectory


def test_a_ring_takes_all_of_its_memory() -> None:
    config = ReplayConfig("standard", 0, 1.0, memory=10**9)
    assert replay_bytes([config], ATARI, 8, 16) == [10**9]


def test_a_million_atari_steps_take_less_than_eight_gigabytes() -> None:
    (size,) = replay_bytes([ReplayConfig("standard", 50_000, 1.0)], ATARI, 32, 512)
    assert 7.1e9 < size < 7.5e9


def test_rows_of_burn_in_take_no_frames_of_their_own() -> None:
    """Only the oldest trajectory of each of 16 environments has frames of its own for them."""
    longer = replace(ATARI, unroll_length=ATARI.unroll_length + 40, overlap=40)
    config = ReplayConfig("standard", 1000, 1.0)
    (without,), (size,) = (replay_bytes([config], contract, 8, 16) for contract in (ATARI, longer))
    frame, other_fields = 84 * 84 + PAGE_OVERHEAD, longer.bytes_per_trajectory - ATARI.bytes_per_trajectory - 40 * 84 * 84
    assert size - without == 16 * 40 * frame + 1000 * other_fields


@pytest.mark.parametrize(
    "settings",
    [{"retention": "reservoir"}, {"insert_strategy": "elite_insertion", "dist_function": "kl_policy"}, {"compress": True}],
)
def test_replays_that_cannot_rely_on_sharing_count_in_full(settings: dict[str, Any]) -> None:
    config = ReplayConfig("standard", 50_000, 1.0, **settings)
    assert replay_bytes([config], ATARI, 32, 512) == [most_bytes(config, ATARI, 50_000)]


def test_a_ring_smaller_than_its_environments_shares_nothing() -> None:
    config = ReplayConfig("standard", 16, 1.0)
    for environments in (16, 10**6):
        assert replay_bytes([config], ATARI, 8, environments) == [most_bytes(config, ATARI, 16)]


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_the_fill_in_factor_counts_the_worst_case_capacity(factor: float) -> None:
    """More compressed trajectories will fit, but training must not wait for them."""
    config = ReplayConfig("standard", 0, 1.0, memory=20_000, compress=True)
    mixture = make_mixture([config], SMALL, 4, factor, np.random.default_rng(0))
    (settled,) = settle_capacities([config], SMALL, 4)
    trajectory = {name: array[0] for name, array in SMALL.allocate(1, poison=True).items()}
    for _ in range(max(1, math.ceil(factor * settled.capacity))):
        assert not mixture.can_sample()
        mixture.insert({**trajectory, "environment_id": np.array(0, np.int32)})
    assert mixture.can_sample()
