"""Runs share experience: each replay takes the trajectories of others, whole and in order, and outlives them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay import exchange as module
from replay import make_mixture, parse_replay_parameters
from replay.exchange import FIRST_ID, Exchange
from tests.builders import trajectory_contract

CONTRACT = trajectory_contract(unroll_length=3, frame_shape=(5,), frames_stacked=2)
MIXTURE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 20, "sample_ratio": 0.5}]'


def trajectory(number: int, environment: int = 0) -> dict[str, Any]:
    fields = {name: np.full(field.shape, number % 200, field.dtype) for name, field in CONTRACT.fields.items()}
    fields["actions"][:] = number
    return {**fields, "environment_id": np.array(environment, np.int32)}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exchange]]:
    """Three runs; the last one has other settings of the environment."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    made = [Exchange(tmp_path / "shared", CONTRACT, identity) for identity in ("a", "a", "b")]
    yield made
    for each in made:
        each.close()


def taken(run: Exchange) -> list[int]:
    return [int(each["actions"][0]) for each in run.take()]


def test_a_run_takes_what_others_publish_in_order_and_once(runs: list[Exchange]) -> None:
    one, other, stranger = runs
    assert taken(one) == taken(other) == taken(stranger) == []
    for number in (1, 2, 3):
        one.publish(trajectory(number, environment=4))
    found = list(other.take())
    assert [int(each["rewards"][2]) for each in found] == [1, 2, 3]
    assert all((each["frames"] == number).all() for number, each in enumerate(found, 1))
    ids = {int(each["environment_id"]) for each in found}
    assert len(ids) == 1
    assert min(ids) >= FIRST_ID
    assert taken(other) == taken(one) == taken(stranger) == []
    assert other.metrics() == {"exchange/runs": 1, "exchange/taken": 3, "exchange/gaps": 0}


def test_what_was_overwritten_is_a_gap_behind_which_environments_are_others(runs: list[Exchange]) -> None:
    one, other, _ = runs
    assert taken(other) == []
    one.publish(trajectory(1))
    (before,) = other.take()
    for number in range(2, one.slots + 7):
        one.publish(trajectory(number))
    found = list(other.take())
    assert [int(each["actions"][0]) for each in found] == list(range(7, one.slots + 7))
    assert other.gaps == 1
    assert int(before["environment_id"]) not in {int(each["environment_id"]) for each in found}


def test_a_trajectory_that_is_being_written_is_not_taken(runs: list[Exchange]) -> None:
    one, other, _ = runs
    assert taken(other) == []
    one.publish(trajectory(1))
    one.publish(trajectory(2))
    one._own.arrays["number"][0] = 0
    assert taken(other) == [2]


def test_an_ended_run_is_forgotten_and_a_killed_one_s_file_removed(runs: list[Exchange], tmp_path: Path) -> None:
    one, other, stranger = runs
    assert taken(other) == []
    assert other.metrics()["exchange/runs"] == 1
    fcntl.flock(one._own.descriptor, fcntl.LOCK_UN)  # as the kernel does if the process is killed
    assert taken(other) == []
    assert other.metrics()["exchange/runs"] == 0
    other.close()
    stranger.close()
    assert os.listdir(tmp_path / "shared") == []


def test_replays_take_others_trajectories_and_queues_do_not(runs: list[Exchange]) -> None:
    mixture = make_mixture(parse_replay_parameters(MIXTURE), CONTRACT, 2, 0.1, np.random.default_rng(1))
    mixture.exchange, other = runs[0], runs[1]
    assert taken(other) == taken(runs[0]) == []  # a run takes what is published after it has seen the other
    mixture.insert(trajectory(1))
    for number in (7, 8, 9):
        other.publish(trajectory(number))
    mixture.insert(trajectory(2))
    queue, standard = mixture.replays
    assert (queue.size, standard.ring.size) == (2, 5)  # type: ignore[attr-defined]
    assert taken(other) == [1, 2]
    drawn = [mixture.sample() for _ in range(2) if mixture.can_sample()]
    assert {int(batch.columns["actions"][0, 0]) for batch in drawn} == {1, 2}  # from the queue
    assert {int(batch.columns["actions"][1, 0]) for batch in drawn} <= {1, 2, 7, 8, 9}
