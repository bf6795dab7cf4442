"""Whole runs with several learners: they learn, stop together, and end with one cause when a learner ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner import launch
from learner.metrics.hardware import family_of
from learner.metrics.writer import read_metrics
from learner.ranks import processes
from learner.ranks.learner_process import LearnerTask
from learner.runs.checkpoint import load_checkpoint, load_replay
from learner.runs.directory import RunDirectory
from tests.learner.launching import MIXTURE, command
from tests.support import children_named, runs, same

TWO: dict[str, Any] = {"learner_count": 2, "calibrate_input": False, "preflight": False}
ENDLESS = 10**9
SECONDS = 60.0


def run_of(results: Path) -> RunDirectory:
    return RunDirectory((results / "latest").resolve())


@contextlib.contextmanager
def meanwhile(results: Path, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread as soon as the run in this folder has saved a checkpoint."""

    def wait_and_act() -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not list(results.glob("*/checkpoints/update_*.pt")):
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()


def kill_member() -> None:
    (other,) = children_named("learner-1")
    os.kill(other, signal.SIGKILL)


def kill_worker_of_member() -> None:
    (other,) = children_named("learner-1")
    (worker,) = [pid for pid in family_of(other) if Path(f"/proc/{pid}/comm").read_text().strip() == "worker-0"]
    os.kill(worker, signal.SIGKILL)


def terminate_member() -> None:
    (other,) = children_named("learner-1")
    os.kill(other, signal.SIGTERM)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_two_learners_solve_the_toy_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"envs_per_worker": 8, "batch_size": 4, "lr": 4e-3, "entropy_loss_weight": 0.05, "unroll_length": 20}
    for seed in (1, 2, 3):
        job = command(tmp_path, "train", **TWO, **settings, seed=seed, environment_max_steps=24_000, log_period=0.2)
        assert launch.run(job) == 0
        run = run_of(tmp_path)
        (path,) = run.checkpoint_paths()
        checkpoint = load_checkpoint(path)
        if np.mean(checkpoint.returns) > 0.7:
            break
    assert np.mean(checkpoint.returns) > 0.7
    counters = checkpoint.counters
    assert counters.steps == counters.updates * 2 * 4 * 20 >= 24_000
    assert counters.trajectories == counters.updates * 8
    assert counters.episodes == counters.steps // 10  # an episode of Catch takes nine steps, and one more to reset
    columns = read_metrics(run.metrics)
    assert np.nanmax(columns["ranks/allreduce_seconds"]) > 0
    assert np.nanmax(columns["ranks/wait_1"]) > 0
    assert "an update learns from 8 trajectories" in capsys.readouterr().out
    assert not children_named("learner-1")


@pytest.mark.parametrize(
    ("end", "exit_code", "cause"),
    [
        (kill_member, 1, "rank 1 was killed by SIGKILL (out of memory?)"),
        (kill_worker_of_member, 1, "rank 1 failed: worker 0 was killed by SIGKILL (out of memory?)"),
        (terminate_member, 0, None),
        (interrupt, 0, None),
    ],
)
def test_the_run_ends_together_and_can_be_resumed(
    end: Callable[[], None], exit_code: int, cause: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**TWO, "worker_kind": "cpu", "worker_count": 1, "max_worker_restarts": 0, "checkpoint_period": 20}
    job = command(tmp_path, "train", **settings, environment_max_steps=ENDLESS)
    before = set(family_of(os.getpid()))
    with meanwhile(tmp_path, end):
        assert launch.run(job) == exit_code
    said = capsys.readouterr().out.splitlines()
    if cause:
        assert said[-1] == cause
    counters = load_checkpoint(run_of(tmp_path).checkpoint_paths()[-1]).counters
    drawn = counters.steps // (2 * 4 * 10)
    assert drawn in (counters.updates, counters.updates + 1)  # a learner may die in an update, whose batches are drawn
    left = [pid for pid in set(family_of(os.getpid())) - before if runs(pid) and "learner-1" in name_of(pid)]
    assert left == []


def name_of(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text()


def test_a_learner_that_fails_at_its_start_ends_the_run_with_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> LearnerTask:
        return replace(LearnerTask(*arguments), checkpoint=tmp_path / "missing.pt")

    monkeypatch.setattr(processes, "LearnerTask", broken)
    assert launch.run(command(tmp_path, "train", **TWO)) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"rank 1 failed: ValueError: {tmp_path / 'missing.pt'}: wanted")
    assert not children_named("learner-1")


def test_a_reproducible_run_resumes_with_the_same_bits_in_every_learner(tmp_path: Path) -> None:
    settings = {**TWO, "reproducible": True, "replay_parameters": MIXTURE, "lr_end_value": 6e-4, "checkpoint_period": 1000}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert launch.run(command(whole, "train", **settings, environment_max_steps=960)) == 0
    assert launch.run(command(parts, "train", **settings, environment_max_steps=640)) == 0
    assert launch.run(command(parts, "train_w_load", load="latest", environment_max_steps=960)) == 0
    ends = []
    for results in (whole, parts):
        run = run_of(results)
        checkpoint = load_checkpoint(run.checkpoint_paths()[-1])
        path = run.replay_path(checkpoint.counters.updates, 1)
        ends.append((checkpoint, load_replay(path, checkpoint.of_rank(1))))
    (first, replay), (second, other) = ends
    assert same(first.agent, second.agent)
    assert same(replay, other)
    assert first.counters.updates > 0
    assert None not in first.rank_replays
    with pytest.raises(ValueError, match=r"^learner_count: wanted 2 as in the checkpoint, .*, got 1; --noreproducible "):
        command(parts, "train_w_load", load="latest", learner_count=1, environment_max_steps=1200)
    others = {"learner_count": 1, "reproducible": False, "environment_max_steps": 1200}
    assert launch.run(command(parts, "train_w_load", load="latest", **others)) == 0
    assert load_checkpoint(run_of(parts).checkpoint_paths()[-1]).counters.steps >= 1200


def test_learners_that_share_experience_with_other_runs_take_none_from_each_other(tmp_path: Path) -> None:
    settings = {**TWO, "replay_parameters": MIXTURE, "share_experience": str(tmp_path / "shared"), "log_period": 0.1}
    assert launch.run(command(tmp_path / "results", "train", **settings, environment_max_steps=4000)) == 0
    columns = read_metrics(run_of(tmp_path / "results").metrics)
    assert len(columns["exchange/runs"])
    assert not columns["exchange/runs"].any()
    assert not columns["exchange/taken"].any()
