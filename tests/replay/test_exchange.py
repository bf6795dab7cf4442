"""Runs share experience: each replay takes the trajectories of others that mean the same, whole and in order."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner import launch
from replay import exchange as module
from replay import make_mixture, parse_replay_parameters
from replay.exchange import FIRST_ID, Exchange
from replay.trajectory import TrajectoryContract
from tests.builders import trajectory_contract
from tests.learner.launching import command, trained

CONTRACT = trajectory_contract(unroll_length=3, frame_shape=(5,), frames_stacked=2)
MIXTURE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 20, "sample_ratio": 0.5}]'


def trajectory(number: int, environment: int = 0, contract: TrajectoryContract = CONTRACT) -> dict[str, Any]:
    fields = {name: np.full(field.shape, number % 200, field.dtype) for name, field in contract.fields.items()}
    fields["actions"][:] = number
    return {**fields, "environment_id": np.array(environment, np.int32)}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exchange]]:
    """Three runs; the last one has other settings of the environment."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    made = [Exchange(tmp_path / "shared", CONTRACT, identity, run) for identity, run in ("a1", "a2", "b3")]
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


def test_taking_ends_also_beside_a_run_that_is_as_fast(runs: list[Exchange]) -> None:
    one, other, _ = runs
    assert taken(one) == taken(other) == []
    one.publish(trajectory(1))
    found = []
    for number, each in enumerate(other.take(), 2):
        found.append(int(each["actions"][0]))
        one.publish(trajectory(number))
        assert number < 5
    assert found == [1]
    assert taken(other) == [2]


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


def test_learners_of_one_run_take_nothing_from_each_other(runs: list[Exchange], tmp_path: Path) -> None:
    one, other, _ = runs
    second = Exchange(tmp_path / "shared", CONTRACT, "a", "1")
    assert taken(one) == taken(second) == taken(other) == []
    for number, each in enumerate((one, second, other), 1):
        each.publish(trajectory(number))
    assert taken(one) == taken(second) == [3]
    assert sorted(taken(other)) == [1, 2]
    assert [each.metrics()["exchange/runs"] for each in (one, second, other)] == [1, 1, 1]
    fcntl.flock(second._own.descriptor, fcntl.LOCK_UN)  # as the kernel does if the run is killed, before it is resumed
    assert taken(one) == []
    assert not second._path.exists()
    second.close()


def test_a_recurrent_state_of_another_network_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    contract = replace(CONTRACT, state_size=4)
    one, other = (Exchange(tmp_path, contract, "a", run) for run in "12")
    assert taken(other) == []
    one.publish(trajectory(7, contract=contract))
    (found,) = other.take()
    assert found["recurrent_state"].tolist() == [0, 0, 0, 0]
    assert (found["behaviour_policy"] == 7).all()
    one.close()
    other.close()


def test_runs_whose_actions_have_another_distribution_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rings outlive their runs here, so that runs in one process meet."""
    met: dict[Exchange, None] = {}
    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "close", lambda ring: met.setdefault(ring))
        for distribution, lr in (("gaussian", 6e-4), ("beta", 6e-4), ("gaussian", 2e-4)):
            given = {"env": "Reach-v0", "action_distribution": distribution, "lr": lr, "replay_parameters": MIXTURE}
            trained(tmp_path, **given, share_experience=str(tmp_path / "shared"))
    assert [ring.metrics()["exchange/runs"] for ring in met] == [0, 0, 1]
    for ring in met:
        ring.close()


@pytest.mark.parametrize("rings", [0, 1])
def test_a_folder_without_room_is_refused_in_one_line(
    rings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is room for this many rings before the disk is full. The first one is only tried."""
    left = [os.ftruncate] * rings

    def claim(descriptor: int, offset: int, size: int) -> None:
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()(descriptor, size)

    monkeypatch.setattr(os, "posix_fallocate", claim, raising=False)
    shared = tmp_path / "shared"
    job = command(tmp_path / "results", "train", replay_parameters=MIXTURE, share_experience=str(shared))
    assert launch.run(job) == 2
    printed = capsys.readouterr()
    (line,) = [line for line in (printed.out + printed.err).splitlines() if "error" in line]
    assert line.startswith("error: share_experience: wanted a folder with room for a ring of ")
    assert str(shared) in line
    assert line.endswith(f"({os.strerror(errno.ENOSPC)})")
    assert os.listdir(shared) == []
    assert (tmp_path / "results").exists() == bool(rings)


def test_a_ring_has_its_room_where_files_cannot_be_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    ring = Exchange(tmp_path, CONTRACT, "a", "1")
    found = os.fstat(ring._own.descriptor)
    assert found.st_size == ring._own.size <= found.st_blocks * 512
    assert not any(array.any() for array in ring._own.arrays.values())
    ring.close()
