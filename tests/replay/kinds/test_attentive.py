"""Attentive sampling takes the trajectories most similar to the present state of any environment."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replay.base import Encode, Encoded, ReplayConfig
from replay.kinds.attentive import AttentiveReplay, anchor_scores
from replay.kinds.distances import DISTANCES, make_distance
from tests.builders import trajectory_contract
from tests.replay.support import CONTRACT, NumberEncoder, build, context, numbered, sample


def attentive(encode: Encode, capacity: int = 64, *, multiplier: float = 1000.0) -> AttentiveReplay:
    replay = build("attentive", capacity, made_in=context(encode), lambda_batch_multiplier=multiplier)
    assert isinstance(replay, AttentiveReplay)
    return replay


def own_number() -> NumberEncoder:
    """Returns a network whose output is the trajectory's number: distances are differences of numbers."""
    return NumberEncoder(lambda numbers: numbers)


def test_the_nearest_to_the_newest_of_any_environment_are_taken() -> None:
    replay = attentive(own_number())
    for number in range(20):
        replay.insert(numbered(number, environment=0))
    for number in (60, 50, 41, 40):
        replay.insert(numbered(number, environment=1))
    assert replay.ring.newest == {0: 19, 1: 23}
    assert sorted(sample(replay, 4)) == [18, 19, 40, 41]


def test_an_anchor_is_dropped_with_its_slot() -> None:
    replay = attentive(own_number(), capacity=3)
    for number, environment in ((0, 5), (1, 6), (2, 6), (3, 6)):
        replay.insert(numbered(number, environment))
    assert replay.ring.newest == {6: 0}
    assert sorted(sample(replay, 2)) == [2, 3]


def test_anchors_and_candidates_are_encoded() -> None:
    for _ in range(5):
        encode = own_number()
        replay = attentive(encode, multiplier=2.0)
        for number in range(60):
            replay.insert(numbered(number, environment=number % 3))
        sample(replay, 2)
        anchors, candidates = encode.asked
        assert sorted(anchors) == [57, 58, 59]
        assert len(candidates) == len(set(candidates)) == 4


def test_only_the_last_row_of_an_anchor_is_encoded() -> None:
    encode = own_number()
    steps: list[int] = []

    def counting(trajectories: Mapping[str, np.ndarray]) -> Encoded:
        steps.append(trajectories["actions"].shape[1])
        return encode(trajectories)

    replay = attentive(counting)
    for number in range(10):
        replay.insert(numbered(number, environment=0))
    sample(replay, 4)
    assert steps == [1, CONTRACT.unroll_length] == [1, 2]


@pytest.mark.parametrize("place", [{}, {"compress": True}, {"device": "cuda"}], ids=["plain", "compressed", "device"])
def test_only_the_last_row_of_an_anchor_is_read(place: dict[str, Any]) -> None:
    """With hundreds of environments, reading whole trajectories would dominate the cost of a batch."""
    contract = trajectory_contract(40, (60, 60), "uint8", 2, 2, 4)
    sizes: list[int] = []

    def encode(trajectories: Mapping[str, np.ndarray]) -> Encoded:
        steps = trajectories["actions"].shape
        sizes.append(sum(np.asarray(array).nbytes for array in trajectories.values()))
        return Encoded(np.zeros((*steps, 4), np.float32), np.zeros((*steps, 2), np.float32))

    replay = AttentiveReplay(ReplayConfig("attentive", 200, 1.0, **place), replace(context(encode), contract=contract))
    for environment in range(100):
        trajectory = {name: np.zeros(shape, dtype) for name, (shape, dtype) in contract.fields.items()}
        trajectory["frames"][:] = environment
        replay.insert({**trajectory, "environment_id": np.array(environment, np.int32)})
    out, whole = contract.allocate(2), contract.bytes_per_trajectory
    replay.sample(2, out)
    tracemalloc.start()
    try:
        replay.sample(2, out)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sizes[-2] < 0.1 * 100 * whole
    assert most < 0.3 * 100 * whole  # twelve candidates and small temporaries


def test_the_anchor_is_the_last_row() -> None:
    """Features of the two rows are the number and its double. The newest trajectory, 10, ends at 20."""

    def encode(trajectories: dict[str, np.ndarray]) -> Encoded:
        first = trajectories["actions"][:, :1].astype(np.float32)
        rows = np.concatenate([first, 2 * first], axis=1)[..., None]
        return Encoded(np.repeat(rows, 4, axis=2), np.repeat(rows, 2, axis=2))

    replay = build("attentive", 64, made_in=context(encode), lambda_batch_multiplier=100.0)  # type: ignore[arg-type]
    for number in (4, 14, 30, 10):
        replay.insert(numbered(number))
    # mean |20 - 1st| and |20 - 2nd|: 4 -> 14, 14 -> 7, 30 -> 25, 10 -> 5
    assert sorted(sample(replay, 2)) == [10, 14]


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_scores_agree_with_a_slow_computation(name: str) -> None:
    generator = np.random.default_rng(1)
    states = generator.standard_normal((5, 3, 4)).astype(np.float32)
    anchors = generator.standard_normal((2, 4)).astype(np.float32)
    distance = make_distance(name, 2.0)
    wanted = [
        min(np.mean([distance(state[None, None], anchor[None, None])[0] for state in trajectory]) for anchor in anchors)
        for trajectory in states
    ]
    np.testing.assert_allclose(anchor_scores(states, anchors, name, 2.0), wanted, rtol=1e-6, atol=1e-9)


def test_behaviour_features_are_not_used() -> None:
    replay = attentive(own_number())
    for number in range(10):
        replay.insert(numbered(number))
    replay.ring.storage.columns["behaviour_features"][:] = np.nan
    out = CONTRACT.allocate(3)
    replay.encode = lambda rows: Encoded(*(np.repeat(rows["rewards"][..., None], size, axis=2) for size in (4, 2)))
    replay.sample(3, out)
    assert sorted(out["actions"][:, 0].tolist()) == [7, 8, 9]
