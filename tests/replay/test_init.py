"""Properties of every kind of replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from replay import REPLAYS, Mixture, ReplayConfig, make_mixture, needs_encode, needs_features
from replay.base import Replay
from replay.parameters import types
from tests.builders import trajectory_contract
from tests.replay.support import (
    CONTRACT,
    KINDS,
    NumberEncoder,
    build,
    context,
    now_at,
    numbered,
    numbers_of,
    ring_of,
    sample,
)

ALL = pytest.mark.parametrize("name", KINDS)
REPLAYING = pytest.mark.parametrize("name", [name for name in KINDS if name != "queue"])
SAMPLING = [name for name, (kind, _) in KINDS.items() if kind in ("elite", "attentive")]


def make(name: str, capacity: int, written: int = 0, **how: Any) -> Replay:
    kind, settings = KINDS[name]
    return build(kind, capacity, written, made_in=context(now_at(3), **how), **settings)


def test_the_command_line_and_the_factories_know_the_same_types() -> None:
    assert set(types()) == {*REPLAYS, "custom"}


@ALL
def test_only_written_slots_are_given(name: str) -> None:
    replay = make(name, 40)
    for number in range(30):
        replay.insert(numbered(number, environment=number % 4))
        assert set(sample(replay, 1)) <= set(range(number + 1))
    replay.insert(numbered(30))
    for count in (1,) if name == "queue" else (3, 8, 12):
        assert set(sample(replay, count)) <= set(range(31))


@ALL
def test_columns_are_intact_when_slots_are_reused(name: str) -> None:
    replay = make(name, 7)
    for number in range(60):
        replay.insert(numbered(number, environment=number % 3))
        if replay.can_sample(4):
            assert set(sample(replay, 4)) <= set(range(number + 1))


@REPLAYING
def test_a_ring_never_exceeds_its_capacity(name: str) -> None:
    replay = make(name, 5, written=23)
    assert len(set(sample(replay, 200))) <= 5
    assert ring_of(replay).size == ring_of(replay).capacity == 5


@REPLAYING
@pytest.mark.parametrize(("capacity", "asked", "needed"), [(10, 4, 4), (10, 0, 1), (3, 9, 3)])
def test_nothing_is_given_before_min_fill(name: str, capacity: int, asked: int, needed: int) -> None:
    replay = make(name, capacity, written=needed - 1, min_fill=asked)
    assert not replay.can_sample(1)
    with pytest.raises(RuntimeError, match=f"wanted {needed} trajectories with a usable row, got {needed - 1}"):
        sample(replay, 1)
    replay.insert(numbered(0))
    assert replay.can_sample(1)
    sample(replay, 1)


@REPLAYING
def test_too_few_trajectories_for_a_batch_are_given_more_than_once(name: str) -> None:
    replay = make(name, 40, written=3)
    assert set(sample(replay, 60)) == {0, 1, 2}


@ALL
def test_a_single_trajectory_is_given(name: str) -> None:
    assert sample(make(name, 4, written=1), 1) == [0]


@ALL
def test_stored_trajectories_are_copies(name: str) -> None:
    replay = make(name, 2)
    slot = numbered(0)
    replay.insert(slot)
    for array in slot.values():
        array[...] = 1
    assert sample(replay, 1) == [0]


@pytest.mark.parametrize("name", SAMPLING)
def test_no_trajectory_occurs_twice_in_a_batch(name: str) -> None:
    replay = make(name, 40, written=40)
    for progress in range(20):
        drawn = sample(replay, 1 + progress)
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("name", SAMPLING)
def test_annealing_ends_with_uniform_draws_and_no_forward_pass(name: str) -> None:
    """Chi-square over 8 trajectories; 30 is beyond its 99.9 % point for 7 degrees of freedom."""
    kind, settings = KINDS[name]
    encode = NumberEncoder(lambda numbers: numbers)
    replay = build(kind, 8, 8, made_in=context(encode, progress=0.5), annealing_factor=0.5, **settings)
    counts = np.bincount(np.concatenate([sample(replay, 2) for _ in range(1000)]), minlength=8)
    assert encode.asked == []
    assert len(counts) == 8
    assert ((counts - 250) ** 2 / 250).sum() < 30


@ALL
def test_the_same_generator_repeats_draws(name: str) -> None:
    draws = [sample(make(name, 20, written=20, share=8), 8) for _ in range(2)]
    assert draws[0] == draws[1]


@ALL
def test_metrics_start_anew_after_they_are_read(name: str) -> None:
    replay = make(name, 20, written=20)
    sample(replay, 4)
    metrics = replay.metrics()
    wanted = {"waiting", "dropped"} if name == "queue" else {"age", "draws", "draws_max"}
    assert set(metrics) == wanted | ({"distance"} if name in SAMPLING else set())
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())
    assert set(replay.metrics()) <= {"waiting", "dropped"}


def mixture_of(name: str, progress: Callable[[], float] = lambda: 0.0) -> Mixture:
    kind, settings = KINDS[name]
    configs = [ReplayConfig(kind, 20, 0.7, **settings), ReplayConfig("queue", 1, 0.3)]
    return make_mixture(configs, CONTRACT, 10, 0.5, np.random.default_rng(1), encode=now_at(0), progress=progress)


@ALL
def test_a_mixture_gives_each_share_and_its_metrics(name: str) -> None:
    mixture, number = mixture_of(name), 0
    for _ in range(6):
        while not mixture.can_sample():
            assert mixture.can_insert()
            mixture.insert(numbered(number % 256, environment=number % 4))
            number += 1
        batch = mixture.sample()
        assert np.bincount(batch.source).tolist() == [7, 3]
        assert batch.is_replay.tolist() == [name != "queue"] * 7 + [False] * 3
        numbers_of(batch.columns)
    numbers = mixture.metrics()
    assert len(numbers) == 2
    assert ("age" in numbers[0]) is (name != "queue")
    assert "waiting" in numbers[1]


def test_the_mixture_passes_progress_to_its_replays() -> None:
    over = 0.0
    mixture = mixture_of("elite_1", progress=lambda: over)
    for number in range(20):
        mixture.insert(numbered(number))
    mixture.sample()
    assert "distance" in mixture.metrics()[0]
    over = 2.0
    for number in range(20):
        mixture.insert(numbered(number))
    mixture.sample()
    assert "distance" not in mixture.metrics()[0]


@pytest.mark.parametrize(
    ("name", "features", "encode"),
    [
        ("queue", False, False),
        ("reservoir", False, False),
        ("elite_1", True, True),
        ("elite_kl_policy", False, True),
        ("attentive", False, True),
        ("inserting", True, True),
        ("attentive_inserting", True, True),
    ],
)
def test_the_settings_tell_what_a_replay_needs_from_the_learner(name: str, features: bool, encode: bool) -> None:
    kind, settings = KINDS[name]
    configs = [ReplayConfig("queue", 1, 0.5), ReplayConfig(kind, 5, 0.5, **settings)]
    assert (needs_features(configs), needs_encode(configs)) == (features, encode)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_missing_encoder_is_refused(name: str) -> None:
    kind, settings = KINDS[name]
    with pytest.raises(ValueError, match="replay: wanted a function that encodes trajectories, got none"):
        build(kind, 5, made_in=context(None), **settings)


@ALL
def test_a_mixture_needs_an_encoder_only_if_a_replay_does(name: str) -> None:
    kind, settings = KINDS[name]
    configs = [ReplayConfig(kind, 20, 0.5, **settings), ReplayConfig("queue", 1, 0.5)]
    if needs_encode(configs):
        with pytest.raises(ValueError, match="wanted a function that encodes"):
            make_mixture(configs, CONTRACT, 4, 0.0, np.random.default_rng(1), encode=None)
        return
    mixture = make_mixture(configs, CONTRACT, 4, 0.0, np.random.default_rng(1), encode=None)
    for number in range(40):
        mixture.insert(numbered(number))
    numbers_of(mixture.sample().columns)


def test_mixtures_from_one_generator_draw_differently() -> None:
    """A resumed run, whose generator was restored, would otherwise repeat the draws of the run before."""
    contract = trajectory_contract(2, (3,), "float32", 1, 2)
    configs = (ReplayConfig("standard", 50, 1.0),)
    generator = np.random.default_rng(4)
    drawn = []
    for _ in range(2):
        state = generator.bit_generator.state
        mixture = make_mixture(configs, contract, 16, 0.0, generator)
        again = np.random.default_rng(0)
        again.bit_generator.state = state
        twin = make_mixture(configs, contract, 16, 0.0, again)
        for one in (mixture, twin):
            for row in range(50):
                trajectory = {name: array[0] for name, array in contract.allocate(1).items()}
                trajectory["environment_id"] = np.int32(row)
                one.insert(trajectory)
        drawn.append(mixture.sample().columns["environment_id"].tolist())
        assert twin.sample().columns["environment_id"].tolist() == drawn[-1]
    assert drawn[0] != drawn[1]
