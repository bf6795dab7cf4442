"""The pace is exact, and neither side ever waits for the other for good, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from replay import Mixture, PaceConfig, ReplayConfig, make_mixture
from replay.pace import Pace
from tests.builders import trajectory_contract
from tests.replay.support import numbered

CONTRACT = trajectory_contract(unroll_length=4, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1)


def paced_mixture(pace: PaceConfig, window: int = 1, batch_size: int = 3, replays: int = 1) -> Mixture:
    contract = replace(CONTRACT, window=window)
    configs = [ReplayConfig("standard", 50, 1 / replays)] * replays
    return make_mixture(configs, contract, batch_size * pace.batches_at_once, 0.0, np.random.default_rng(1), pace=pace)


@pytest.mark.parametrize("updates_per_step", [0.01, 0.1, 0.25, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("learning_starts", [0, 5, 200])
@pytest.mark.parametrize("batches_at_once", [1, 7, 64])
def test_a_run_always_goes_on_and_keeps_the_ratio(updates_per_step: float, learning_starts: int, batches_at_once: int) -> None:
    mixture = paced_mixture(PaceConfig(updates_per_step, learning_starts, batches_at_once), batch_size=1)
    steps = batches = 0
    trajectory = numbered(1, contract=CONTRACT)  # rows of odd numbers are used
    for _ in range(2_000):
        if batches == 60 * batches_at_once:
            break
        assert mixture.can_insert() != mixture.can_sample()
        if mixture.can_insert():
            mixture.insert(trajectory)
            steps += 4
        else:
            assert steps > learning_starts
            mixture.sample()
            batches += batches_at_once
        earned = updates_per_step * max(0, steps - learning_starts)
        assert -1e-3 <= earned - batches < batches_at_once + 4 * updates_per_step


def test_the_steps_before_learning_starts_are_not_caught_up_on() -> None:
    config = PaceConfig(updates_per_step=0.5, learning_starts=6)
    assert config.first_draw == 8
    pace = Pace(config, steps_of_trajectory=4)
    pace.insert()
    assert not pace.owes
    pace.insert()  # steps 7 and 8 earn half a batch each
    assert pace.owes
    pace.spend()
    assert not pace.owes


def test_a_batch_that_is_owed_waits_for_a_row_that_was_used() -> None:
    mixture = paced_mixture(PaceConfig(1.0, 0))
    mixture.insert(numbered(2, contract=CONTRACT))  # no row is used
    assert mixture.can_insert()
    assert not mixture.can_sample()
    mixture.insert(numbered(1, contract=CONTRACT))
    assert not mixture.can_insert()
    assert mixture.can_sample()


def test_a_resumed_mixture_owes_what_it_owed() -> None:
    pace = PaceConfig(0.3, 10, 2)
    one, other = paced_mixture(pace), paced_mixture(pace)
    for _ in range(5):
        one.insert(numbered(1, contract=CONTRACT))
    one.sample()
    other.load_state_dict(one.state_dict())
    for _ in range(40):
        assert (one.can_insert(), one.can_sample()) == (other.can_insert(), other.can_sample())
        for mixture in (one, other):
            if mixture.can_insert():
                mixture.insert(numbered(1, contract=CONTRACT))
            else:
                mixture.sample()


@pytest.mark.parametrize(("before", "now"), [(8, 1), (1, 8)])
def test_a_resumed_mixture_may_draw_another_number_of_batches_at_once(before: int, now: int) -> None:
    """Every step still earns what the pace says: 0.5 batches."""
    one, other = (paced_mixture(PaceConfig(0.5, 0, at_once), replays=2) for at_once in (before, now))
    drawn = 0
    for mixture in (one, other):
        if mixture is other:
            other.load_state_dict(one.state_dict())
        inserts = 0
        while inserts < 31 or not mixture.can_insert():
            if mixture.can_insert():
                mixture.insert(numbered(1, contract=CONTRACT))
                inserts += 1
            else:
                assert mixture.can_sample()
                drawn += len(mixture.sample().source) // 3
    steps = 2 * 31 * CONTRACT.unroll_length
    assert 0.5 * steps - now < drawn <= 0.5 * steps


def test_whole_trajectories_have_a_pace_too() -> None:
    mixture = paced_mixture(PaceConfig(0.5, 0), window=0)
    mixture.insert(numbered(1, contract=CONTRACT))
    assert [mixture.sample().columns["actions"].shape for _ in range(2)] == [(3, 4), (3, 4)]
    assert not mixture.can_sample()
