"""Environments that fail in the learner's own process: the run saves, and ends with the cause in its last line."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest

from learner import launch
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from tests.learner.launching import MIXTURE, command, resume, trained
from workers.processes.out_of_memory import describe
from wrappers import Step, toy
from wrappers.spec import FAILURES
from wrappers.toys.catch import Catch

SERIAL = {"calibrate_input": False}
REPRODUCIBLE = {**SERIAL, "reproducible": True, "replay_parameters": MIXTURE}
BURN_IN = {**REPRODUCIBLE, "core": "lstm", "core_size": 8, "burn_in": 4}


class BrokenError(Exception):
    """An error that no part of the program raises."""


class FailingCatch(Catch):
    """Catch that raises `error` at step `fails_at`, and when it is closed after that. Step 0 is a reset."""

    error: BaseException | None = None
    fails_at = 0
    count = 0

    def reset(self, seed: int) -> Any:
        type(self).count = 0
        self._fail_if_due()
        return super().reset(seed)

    def step(self, actions: Any) -> Step:
        type(self).count += 1
        self._fail_if_due()
        return super().step(actions)

    def close(self) -> None:
        if isinstance(self.error, FAILURES) and self.count >= self.fails_at:
            raise self.error

    def _fail_if_due(self) -> None:
        if self.error and self.count == self.fails_at:
            raise self.error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FailingCatch]:
    """The class of the environments, which do not fail unless a test asks for it."""
    monkeypatch.setitem(toy.TOYS, Catch.env_id, FailingCatch)
    for name in ("error", "fails_at", "count"):
        monkeypatch.setattr(FailingCatch, name, getattr(FailingCatch, name))
    return FailingCatch


def fail(failing: type[FailingCatch], error: BaseException | None, at: int = 0) -> None:
    failing.error, failing.fails_at = error, at


def place(name: str = "_fail_if_due") -> str:
    """The place of the error that a line names: the last line of a method of `FailingCatch`."""
    lines, first = inspect.getsourcelines(getattr(FailingCatch, name))
    return f" ({os.path.relpath(__file__)}:{first + len(lines) - 1})"


def run_in(results: Path) -> RunDirectory:
    return RunDirectory((results / "latest").resolve())


@pytest.mark.parametrize("settings", [SERIAL, {**SERIAL, "prepared_batches": 2}, REPRODUCIBLE, BURN_IN])
def test_the_run_saves_and_ends_with_the_cause_and_can_be_resumed(
    settings: dict[str, Any], failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes in the middle of a trajectory, whose rows are lost."""
    fail(failing, BrokenError("the simulator is gone\nmore of it"), at=37)
    assert launch.run(command(tmp_path, "train", **settings)) == 1
    run = run_in(tmp_path)
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"worker 0 failed: BrokenError: the simulator is gone{place()}"
    assert str(run.path) in said.splitlines()[-2]
    assert "Traceback" not in said
    assert "in _fail_if_due" in run.log.read_text()
    (saved,) = run.checkpoint_paths()
    assert load_checkpoint(saved).counters.updates > 0
    fail(failing, None)
    resume(run, capsys)
    assert load_checkpoint(run.checkpoint_paths()[-1]).counters.steps >= 600


@pytest.mark.parametrize("at", [0, 5])
def test_an_environment_that_fails_before_a_resumed_run_goes_on_replaces_nothing(
    at: int, failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its reset, and while its past is repeated."""
    run = trained(tmp_path, **REPRODUCIBLE)
    before = {path: path.read_bytes() for path in run.checkpoints.iterdir()}
    fail(failing, BrokenError("no display"), at)
    assert launch.run(command(tmp_path, "train_w_load", load=str(run.path), environment_max_steps=600)) == 1
    said = capsys.readouterr().out
    assert "worker 0 failed: BrokenError: no display" in said.splitlines()[-1]
    assert {path: path.read_bytes() for path in run.checkpoints.iterdir()} == before
    fail(failing, None)
    resume(run, capsys)


def test_an_environment_that_fails_in_random_play_is_one_line(
    failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(failing, BrokenError("no display"), at=3)
    assert launch.run(command(tmp_path, "train", calibrate_input=True)) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"random play before training failed: BrokenError: no display{place()}"
    assert "in _fail_if_due" in run_in(tmp_path).log.read_text()


def test_an_environment_that_cannot_be_closed_is_a_warning(
    failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(failing, BrokenError("no display"), at=-1)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 0
    assert "worker 0 could not close its environments: BrokenError: no display" in capsys.readouterr().out
    assert load_checkpoint(run_in(tmp_path).checkpoint_paths()[-1]).counters.steps >= 300


@pytest.mark.parametrize(("code", "line"), [(None, "worker 0 failed: SystemExit"), (7, "worker 0 failed: SystemExit: 7")])
def test_an_environment_that_exits_ends_the_run_as_one_that_fails(
    code: int | None, line: str, failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(failing, SystemExit(*([] if code is None else [code])), at=37)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"{line}{place()}"
    assert len(run_in(tmp_path).checkpoint_paths()) == 1


def test_requests_to_end_and_too_little_memory_keep_their_meaning(
    failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(failing, KeyboardInterrupt(), at=37)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 130
    capsys.readouterr()
    fail(failing, error := MemoryError("of the simulator"), at=37)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == launch.OUT_OF_MEMORY % describe(error)


@pytest.mark.parametrize(("at", "episodes"), [(0, 0), (25, 4)])
def test_a_test_reports_the_episodes_before_the_environment_failed(
    at: int, episodes: int, failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, **SERIAL)
    fail(failing, BrokenError("the simulator is gone\nmore of it"), at)
    capsys.readouterr()
    assert launch.run(command(tmp_path, "test", load=str(run.path), test_episode_count=10, test_environments=2)) == 1
    said = capsys.readouterr().out
    assert f"error: the test failed: BrokenError: the simulator is gone{place()} (--verbosity=2 shows where)\n" in said
    assert "Traceback" not in said
    assert f"Stopped after {episodes} of 10 episodes" in said
    results = [json.loads(path.read_text()) for path in run.path.glob("evaluation_*.json")]
    assert [len(result["episodes"]) for result in results] == ([episodes] if episodes else [])


def test_an_export_says_in_one_line_that_the_environment_failed(
    failing: type[FailingCatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, **SERIAL)
    fail(failing, BrokenError("no display"), at=3)
    capsys.readouterr()
    assert launch.run(command(tmp_path, "export", load=str(run.path))) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("error: random play")
    assert last.endswith(f"failed: BrokenError: no display{place()} (--verbosity=2 shows where)")


@pytest.mark.parametrize("at", [0, 3])
def test_an_environment_that_fails_while_its_speed_is_measured_is_one_line(
    at: int, failing: type[FailingCatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "wants_preflight", lambda *_: True)  # else toys are not measured
    fail(failing, BrokenError("no display"), at)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"error: random play before training failed: BrokenError: no display{place()} (--verbosity=2 shows where)"


def test_latest_stays_with_the_run_before_if_a_new_one_fails_at_once(failing: type[FailingCatch], tmp_path: Path) -> None:
    run = trained(tmp_path, **SERIAL)
    fail(failing, BrokenError("no display"), at=0)
    assert launch.run(command(tmp_path, "train", **SERIAL)) == 1
    assert len(list(tmp_path.glob("Catch*"))) == 2
    assert run_in(tmp_path).path == run.path
