"""A full ring keeps the newest, a uniform sample of all, or the trajectories near the current policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replay.base import Encoded, ReplayConfig
from replay.ring.retention import EliteInsertion, make_ring
from tests.builders import trajectory_contract
from tests.replay.support import CONTRACT, context, now_at, numbered, numbers_of
from tests.support import golden

GOLDEN = golden("elite.json")


def kept(capacity: int, written: int, seed: int = 7, **settings: Any) -> list[int]:
    """Returns the sorted numbers in a ring after `written` inserts. The current policy is that of number 0."""
    ring = make_ring(ReplayConfig("standard", capacity, 1.0, **settings), context(now_at(0), seed=seed))
    for number in range(written):
        ring.insert(numbered(number))
    return sorted(numbers_of(ring.read(np.arange(ring.size))).tolist())


def test_fifo_keeps_the_newest() -> None:
    assert kept(4, 11) == [7, 8, 9, 10]


def test_a_reservoir_is_a_uniform_sample_of_all_trajectories() -> None:
    """Chi-square over 20 trajectories, 400 reservoirs of 5; 44 is its 99.9 % point for 19 degrees of freedom."""
    counts = np.zeros(20)
    for seed in range(400):
        numbers = kept(5, 20, seed, retention="reservoir")
        assert len(set(numbers)) == 5
        counts[numbers] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 44


def test_a_reservoir_that_is_not_full_keeps_everything() -> None:
    assert kept(8, 8, retention="reservoir") == list(range(8))


def test_the_farthest_of_the_elite_batch_is_evicted() -> None:
    assert kept(4, 9, insert_strategy="elite_insertion", elite_batch_size=4) == [0, 1, 2, 8]


def test_an_elite_batch_of_one_evicts_at_random() -> None:
    """The newest trajectory is always stored."""
    numbers = kept(10, 60, insert_strategy="elite_insertion", elite_batch_size=1)
    assert numbers[-1] == 59
    assert numbers[:9] != list(range(9))


def test_nothing_is_encoded_before_the_ring_is_full() -> None:
    encode = now_at(0)
    config = ReplayConfig("standard", 3, 1.0, insert_strategy="elite_insertion", elite_batch_size=9)
    ring = make_ring(config, context(encode))
    for number in range(3):
        ring.insert(numbered(number))
    assert encode.asked == []
    ring.insert(numbered(3))
    assert [sorted(asked) for asked in encode.asked] == [[0, 1, 2]]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_reference_evictions(case: dict[str, Any]) -> None:
    behaviour = np.array(case["inputs"]["behaviour_features"], np.float32)
    target = np.array(case["inputs"]["target_features"], np.float32)
    count, length, width = behaviour.shape
    contract = trajectory_contract(length, (1,), "uint8", 1, 2, feature_count=width)
    config = ReplayConfig("standard", count, 1.0, elite_batch_size=count)
    ring = make_ring(config, replace(context(), contract=contract))
    for number in range(count):
        trajectory = {name: np.zeros(field.shape, field.dtype) for name, field in contract.fields.items()}
        ring.insert({**trajectory, "behaviour_features": behaviour[number], "actions": np.full(length, number)})
    insertion = EliteInsertion(
        config, lambda rows: Encoded(target[rows["actions"][:, 0]], np.zeros((count, length, 2))), divergence=None
    )
    assert insertion.slot_to_evict(ring) == case["outputs"]["elite_insertion_victim_ln_norm_p2"]


def test_a_missing_encoder_or_missing_features_are_refused() -> None:
    config = ReplayConfig("standard", 3, 1.0, insert_strategy="elite_insertion")
    with pytest.raises(ValueError, match="standard replay: wanted a function that encodes trajectories, got none"):
        make_ring(config, context())
    without = replace(context(now_at(0)), contract=replace(CONTRACT, feature_count=0))
    with pytest.raises(ValueError, match="standard replay: ln_norm wanted trajectories with features, got none"):
        make_ring(config, without)
    make_ring(replace(config, dist_function="kl_policy"), without)
