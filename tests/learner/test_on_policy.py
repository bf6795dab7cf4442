"""On-policy runs: every row is acted by the version that learns from it, with each kind of workers and after restarts."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner import train as module
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint, load_replay
from learner.runs.directory import RunDirectory
from replay.batch import make_batch
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing, play
from tests.learner.test_train import run_training
from tests.support import same
from workers.processes.supervisor import ProcessWorkers

OWN: dict[str, dict[str, Any]] = {
    "ppo": {"normalise_rewards": True, "entropy_loss_weight_end": 0.0, "intrinsic": "icm"},
    "a2c": {
        "popart": True,
        "entropy_loss_weight_end": 0.0,
        "env": "Catch-v0,Avoid-v0",
        "task_input": True,
        "intrinsic": "rnd",
    },
    "trpo": {"normalise_rewards": True, "cg_iterations": 2, "epochs": 2, "minibatches": 2},
    "pqn": {"normalise_rewards": True, "epochs": 2, "minibatches": 3},
    "es": {"population": 6},
    "cem": {"population": 6, "elites": 2},
    "linucb": {"thompson": True},
}
"""Settings of each agent with which most of its numbers are part of a resume."""
AGENTS = pytest.mark.parametrize("agent", OWN)
WITHOUT_CORE = "linucb"
SHORT: dict[str, Any] = {
    "batch_size": 8,
    "envs_per_worker": 4,
    "worker_count": 2,
    "unroll_length": 6,
    "environment_max_steps": 1200,
    "calibrate_input": False,
    "log_period": 1e-3,
    "hidden_sizes": "16",
}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The acting versions of each batch's rows, `[B, T]`."""
    seen: list[np.ndarray] = []

    def seen_batch(host: Any, *rest: Any) -> Any:
        seen.append(host.columns["policy_version"].copy())
        return make_batch(host, *rest)

    monkeypatch.setattr(module, "make_batch", seen_batch)
    return seen


@pytest.mark.parametrize(
    ("agent", "worker_kind"),
    [*product(OWN, ["cpu"]), *product(("ppo", "es", "linucb"), ("serial", "central"))],
)
def test_every_row_is_acted_by_the_version_that_learns_from_it(
    agent: str, worker_kind: str, versions: list[np.ndarray], tmp_path: Path
) -> None:
    core = {} if agent == WITHOUT_CORE else {"core": "lstm", "core_size": 8}
    settings = {**SHORT, **OWN[agent], "agent": agent, "worker_kind": worker_kind, **core, "environment_max_steps": 480}
    run, checkpoint = run_training(tmp_path, **settings, eval_period=4, eval_episodes=1)
    assert checkpoint.counters.updates == len(versions) == 10
    for update, rows in enumerate(versions):
        assert rows.shape == (8, 6)
        assert (rows == update).all()
    columns = read_metrics(run.metrics)
    assert np.nanmax(columns["charts/policy_lag"]) == 0
    if agent == "ppo":
        assert np.nanmax(columns["losses/first_ratio_error"]) < 1e-4
        assert columns["updates/optimizer_steps"][-1] == 10 * 16


@pytest.mark.parametrize("worker_kind", ["cpu", "central"])
def test_a_replaced_worker_acts_with_the_same_version(
    worker_kind: str, versions: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are killed at arbitrary moments of an update. Every batch still has all its rows of one version."""
    killed: list[int] = []
    start = ProcessWorkers.start

    def start_and_kill(self: ProcessWorkers) -> None:
        start(self)

        def kill() -> None:
            for turn in range(4):
                while len(versions) < 10 * turn + 5:
                    time.sleep(1e-3)
                time.sleep(0.007 * turn)
                killed.append(self.pids[turn % 2])
                os.kill(killed[-1], signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()

    monkeypatch.setattr(ProcessWorkers, "start", start_and_kill)
    settings = {**SHORT, "agent": "ppo", "worker_kind": worker_kind, "environment_max_steps": 3600, "epochs": 1}
    run, checkpoint = run_training(tmp_path, **settings, max_worker_restarts=9)
    assert len(set(killed)) == 4
    assert read_metrics(run.metrics)["workers/restarts"][-1] == 4
    assert checkpoint.counters.updates == len(versions) == 75
    assert all((rows == update).all() for update, rows in enumerate(versions))


@pytest.mark.parametrize(
    ("agent", "core"), [(agent, core) for agent in OWN for core in ("none", "lstm") if core == "none" or agent != WITHOUT_CORE]
)
def test_a_killed_and_resumed_run_gives_the_same_bits(agent: str, core: str, tmp_path: Path) -> None:
    """Also with running moments, and with minibatches that are drawn at random."""
    settings = {
        **SHORT,
        "agent": agent,
        "core": core,
        "core_size": 8,
        "reproducible": True,
        **OWN[agent],
        "environment_max_steps": 480,
        "checkpoint_period": 5,
        "return_window": 2,
        "log_period": 1e5,
    }
    assert_a_kill_changes_nothing(tmp_path, **settings)


def test_a_run_that_stopped_within_a_batch_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker's block is inserted and held. The other's belongs to the same batch and is acted by the same version."""
    # The parts of a run have other budgets, so the learning rate stays.
    settings = {**SHORT, "agent": "ppo", "reproducible": True, "log_period": 1e5, "lr": 1e-3, "lr_end_value": 1e-3}
    straight, broken = (RunDirectory.create(tmp_path, folder) for folder in ("straight", "broken"))
    play(straight, **settings)
    save, saved = module._save, []

    def save_within_a_batch(parts: Any, *rest: Any) -> Any:
        if not saved:
            parts.feeder._receive(0.0)  # as if a signal had come while the learner waited for the second block
            assert len(parts.feeder.state_dict()["held"]) == 1
        saved.append(save(parts, *rest))
        return saved[-1]

    with monkeypatch.context() as patch:
        patch.setattr(module, "_save", save_within_a_batch)
        play(broken, **{**settings, "environment_max_steps": 600})
    checkpoint = load_checkpoint(broken.checkpoint_paths()[-1])
    replay = load_replay(broken.replay_path(checkpoint.counters.updates), checkpoint)
    play(broken, checkpoint, replay, **settings)
    ends = [load_checkpoint(run.checkpoint_paths()[-1]) for run in (straight, broken)]
    assert ends[0].counters.updates == ends[1].counters.updates == 25
    assert same(ends[0].agent, ends[1].agent)
