"""Processes that are begun before a measurement, and what becomes of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.building import make_network_shapes
from learner.early_processes import EarlyProcesses
from learner.plan import Plan
from learner.settings.schema import table_of
from tests.support import children_named, small_config, small_plan
from tests.wrappers.environments import HERE
from workers import WorkerError, random_observations, random_play

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def plan_of(**settings: Any) -> Plan:
    return small_plan(**{"worker_kind": "cpu", "worker_count": 2, **settings})


def take(early_processes: EarlyProcesses, plan: Plan) -> Any:
    return early_processes.take_workers(plan, make_network_shapes(plan.network))


def the_child(name: str) -> list[int]:
    """It takes its name a moment after it has started."""
    end = time.monotonic() + 60
    while not (found := children_named(name)):
        assert time.monotonic() < end, f"no {name} is there"
        time.sleep(0.01)
    assert len(found) == 1
    return found


@linux
def test_workers_that_have_begun_are_taken_over() -> None:
    plan = plan_of()
    with EarlyProcesses(plan, None) as early_processes:
        begun = [*the_child("worker-0"), *the_child("worker-1")]
        workers = take(early_processes, plan)
    assert workers.pids == begun
    assert [the_child("worker-0"), the_child("worker-1")] == [[pid] for pid in begun], "they go on when EarlyProcesses ends"
    workers.stop()
    assert children_named("worker-0") == []


@linux
def test_workers_of_other_settings_take_the_place_of_those_that_have_begun() -> None:
    plan = plan_of(worker_count=1, envs_per_worker=8)
    with EarlyProcesses(plan_of(worker_count=2), None) as early_processes:
        begun = the_child("worker-0")
        the_child("worker-1")
        workers = take(early_processes, plan)
        assert children_named("worker-1") == []
    assert workers.setup.config.envs_per_worker == 8
    assert workers.pids == the_child("worker-0") != begun
    workers.stop()


@linux
@pytest.mark.parametrize("kind", ["cpu", "central", "serial"])
def test_what_nobody_took_ends(kind: str) -> None:
    with EarlyProcesses(plan_of(worker_kind=kind), None):
        if kind == "cpu":
            the_child("worker-0")
        assert len(children_named("worker-0")) == (kind == "cpu")
    assert children_named("worker-0") == []


@pytest.mark.random_play
@pytest.mark.parametrize("kind", ["cpu", "serial"])
def test_random_play_is_the_same_wherever_it_happens(kind: str) -> None:
    plan = plan_of(worker_kind=kind, seed=3)
    with EarlyProcesses(plan, None) as early_processes:
        seen = early_processes.random_observations()
    assert torch.equal(seen, random_observations(plan.config.env, 3))


@linux
def test_random_play_that_nobody_took_closes_its_environments(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    env_args = json.dumps({"path": str(closed), "pause": 0.01})  # 32 s of random play
    settings = {"env": f"{HERE}:TestClosing-v1", "env_args": env_args, "worker_kind": "central"}
    with EarlyProcesses(plan_of(**settings), None):
        closed.unlink()  # the environment was tried out
        the_child("random play")
    assert children_named("random play") == []
    assert closed.read_text().splitlines() == ["random play"] * 4


def test_random_play_whose_process_dies_says_so() -> None:
    with EarlyProcesses(plan_of(), None) as early_processes:
        assert early_processes._random_play
        early_processes._random_play._words, words = multiprocessing.Pipe(duplex=False)
        words.close()  # as its death does
        with pytest.raises(WorkerError, match=r"random play before training: its process died"):
            early_processes.random_observations()


def test_random_play_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_game(*_: object) -> None:
        raise ValueError("no such game")

    monkeypatch.setattr(random_play, "make_vector_env", no_game)
    monkeypatch.setattr(os, "_exit", lambda _: None)
    plan = plan_of()
    with EarlyProcesses(plan, None) as early_processes:
        play = early_processes._random_play
        assert play
        play._words, words = multiprocessing.Pipe(duplex=False)
        random_play._play(play._shared, words, plan.config.env, 1, 1, 4, False)  # what the process does
        with pytest.raises(WorkerError, match=r"(?s)Traceback.*no_game.*random play before training: ValueError: no such game"):
            early_processes.random_observations()


def test_any_seed_that_a_run_may_have_is_one_for_random_play() -> None:
    seeds = table_of("vtrace")["seed"].setting
    config = small_config(env="PongNoFrameskip-v4")
    for seed in (seeds.low, seeds.high):
        assert len(random_observations(config.env, seed)) > 0
