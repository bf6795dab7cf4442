"""Runs that are started from Python: refusals, failures, interrupts and metrics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas
import pytest

import springbok
from learner.metrics.hardware import family_of
from tests.support import CATCH, REPOSITORY, runs

SETTINGS = {**CATCH, "environment_max_steps": 10**9, "worker_kind": "cpu", "worker_count": 1}
ENDLESS = f"""
import springbok
try:
    springbok.train(**{SETTINGS!r})
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python program that trains in `tmp_path`, with metrics already."""
    path = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(command, cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True) as started:
        try:
            deadline = time.monotonic() + 60
            while not any(len(file.read_text().splitlines()) > 1 for file in tmp_path.glob("results/Catch*/metrics.csv")):
                assert started.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield started
        finally:
            started.kill()


def test_an_interrupt_of_the_caller_saves_the_run(program: subprocess.Popen[str], tmp_path: Path) -> None:
    program.send_signal(signal.SIGINT)
    printed, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    assert printed.splitlines()[-1] == "INTERRUPTED"
    assert list(tmp_path.glob("results/latest/checkpoints/update_*.pt"))


def test_a_run_saves_and_ends_if_its_caller_is_killed(program: subprocess.Popen[str], tmp_path: Path) -> None:
    family = family_of(program.pid)
    assert len(family) > 2
    program.kill()
    program.wait()
    deadline = time.monotonic() + 60
    try:
        while any(map(runs, family)):
            assert time.monotonic() < deadline, "a process is left"
            time.sleep(0.1)
    finally:
        for process in filter(runs, family):
            os.kill(process, signal.SIGKILL)
    assert list(tmp_path.glob("results/latest/checkpoints/update_*.pt"))


def test_bad_settings_are_refused_with_the_program_s_line(tmp_path: Path) -> None:
    with pytest.raises(springbok.Refused, match=r"^env: wanted .*, got 'CartPol-v1'; did you mean CartPole-v1"):
        springbok.train(env="CartPol-v1", results_dir=tmp_path)
    with pytest.raises(springbok.Refused, match=r"^env: wanted an id, a class or a function .*, got CartPoleEnv$"):
        springbok.train(env=gymnasium.make("CartPole-v1").unwrapped)  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(springbok.Refused, match=r"^estimate_from: wanted episodes that are played, got an estimate"):
        springbok.Run(tmp_path).evaluate(estimate_from="recording")
    with pytest.raises(springbok.Refused, match=r"^path: wanted a run directory, .*, got '/nowhere'$"):
        springbok.Run("/nowhere")


class FailsLate(gymnasium.Wrapper[np.ndarray, int, np.ndarray, int]):
    """CartPole that fails in its step 300: when it is tried out it works."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.left = 300

    def step(self, action: int) -> Any:
        self.left -= 1
        return super().step(action) if self.left else 1 / 0


def test_a_failure_has_the_program_s_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"worker_kind": "serial", "envs_per_worker": 1, "results_dir": tmp_path, "verbosity": 0}
    with pytest.raises(springbok.Failed, match="division by zero"):
        springbok.train(env=FailsLate, agent="ppo", environment_max_steps=10_000, **small)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("how", ["verbosity", "basic_verbose", "preset"])
def test_a_run_that_prints_nothing_is_found(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"verbosity": {"verbosity": 0}, "basic_verbose": {"basic_verbose": False}}.get(how, {})
    if how == "preset":
        (tmp_path / "silent.json").write_text('{"about": "Silent.", "settings": {"verbosity": 0}}')
        given = {"preset": tmp_path / "silent.json"}
    run = springbok.train(**{**CATCH, **given, "results_dir": tmp_path, "environment_max_steps": 80})
    assert run.path.parent == tmp_path
    assert (capsys.readouterr().out == "") is (how != "preset")


def test_metrics_are_columns_without_a_line_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"settings": {"lr": 0.5}}')
    run = springbok.Run(tmp_path)
    assert (dict(run.metrics), run.metrics.last, run.summary) == ({}, {}, {})
    (tmp_path / "metrics.csv").write_text('steps,"info/a,b_mean",empty\n10,0.5,\n20,,\n3')
    metrics = run.metrics
    assert list(metrics) == ["steps", "info/a,b_mean", "empty"]
    np.testing.assert_array_equal(metrics["steps"], [10, 20])
    np.testing.assert_array_equal(metrics["info/a,b_mean"], [0.5, np.nan])
    assert metrics.last == {"steps": 20.0}
    assert metrics.to_pandas().equals(
        pandas.DataFrame({"steps": [10.0, 20.0], "info/a,b_mean": [0.5, np.nan], "empty": np.nan})
    )
    (tmp_path / "metrics.csv").write_text("steps\n")
    assert run.metrics.last == {}
    assert run.settings == {"lr": 0.5}
