"""A suite makes the runs that are not finished, one after another, and stops on request."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checked_files import LockedError, locked
from tests.support import CATCH
from tests.tools.support import BUDGET, SUITE, add_checkpoint, write_run, write_suite
from tools.plan import PlannedRun, plan_runs, read_suite
from tools.suite import main, progress_of, run_plans, run_suite


class FakeRunner:
    """Writes the files of a run. codes: exit codes by title, 0 by default."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.done: list[str] = []

    def __call__(self, plan: PlannedRun, show: Callable[[str], None], should_stop: Callable[[], bool]) -> int:
        assert (plan.folder / "plan.json").is_file()
        self.done.append(plan.title)
        code = self.codes.get(f"{plan.variant}_{plan.seed}", 0)
        write_run(plan.folder / "Catch-v0_100", finished=True if code == 0 else None, **settings_of_run(plan))
        return code


def settings_of_run(plan: PlannedRun) -> dict[str, Any]:
    return {**plan.settings, "seed": plan.seed}


def never() -> bool:
    return False


@pytest.fixture
def plans(tmp_path: Path) -> list[PlannedRun]:
    return plan_runs(read_suite(write_suite(tmp_path, common={"environment_max_steps": BUDGET})), tmp_path)


def test_all_runs_are_made_once(plans: list[PlannedRun], capsys: pytest.CaptureFixture[str]) -> None:
    runner = FakeRunner()
    assert run_plans(plans, runner, never) == 0
    assert runner.done == [plan.title for plan in plans]
    again = FakeRunner()
    assert run_plans(plans, again, never) == 0
    assert again.done == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/4] Catch-v0, queue, seed 1: return 1.00 after 25 steps in 1:01"
    assert lines[4] == f"{lines[0]} (finished before)"
    assert len(lines) == 8


def test_a_suite_runs_once_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "results" / "tiny").mkdir(parents=True)
    with locked(tmp_path / "results" / "tiny"), pytest.raises(LockedError, match=rf"tiny, which process {os.getpid()} "):
        run_suite(write_suite(tmp_path), tmp_path / "results")


def test_interrupted_runs_are_made_again(plans: list[PlannedRun]) -> None:
    write_run(plans[1].folder / "Catch-v0_50", finished=False, **settings_of_run(plans[1]))
    for number in (0, 2):
        write_run(plans[number].folder / "Catch-v0_50", **settings_of_run(plans[number]))
    runner = FakeRunner()
    run_plans(plans, runner, never)
    assert runner.done == [plans[1].title, plans[3].title]


def test_a_failed_run_is_reported_and_the_others_are_made(plans: list[PlannedRun], capsys: pytest.CaptureFixture[str]) -> None:
    runner = FakeRunner(queue_1=1)
    assert run_plans(plans, runner, never) == 1
    assert len(runner.done) == 4
    assert "seed 1: failed with exit code 1, see " in capsys.readouterr().out.splitlines()[0]


def test_no_run_starts_after_a_stop(plans: list[PlannedRun]) -> None:
    runner = FakeRunner()
    assert run_plans(plans, runner, lambda: len(runner.done) == 2) == 0
    assert len(runner.done) == 2


def test_progress_is_read_from_the_last_row_and_the_budget_from_the_run(plans: list[PlannedRun]) -> None:
    assert progress_of(plans[0]) == "starting"
    write_run(plans[0].folder / "Catch-v0_1", returns=(None, None), frames=4000, finished=None, environment_max_steps=3000)
    assert progress_of(plans[0]).startswith("no episode yet | steps 1,000 of 3,000 | frames 4,000 | 40 frames/s | left 3:20")


def test_a_stopped_program_would_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while a real run trains."""
    common = {name: value for name, value in CATCH.items() if name not in ("env", "environment_max_steps")}
    file = write_suite(tmp_path, common=common, variants={"endless": {"environment_max_steps": 10**8}}, seeds=[1])
    (plan,) = plan_runs(read_suite(file), tmp_path / "tiny")

    def press_when_it_trains() -> None:
        while "steps" not in progress_of(plan):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=press_when_it_trains, daemon=True)
    person.start()
    assert run_suite(file, tmp_path) == 130
    person.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("[1/1] Catch-v0, endless, seed 1: stopped, ")
    assert lines[-2] == "0 of 1 runs are finished."
    assert lines[-1].endswith(f"python -m tools.suite {file} --results_dir={tmp_path}")
    assert json.loads((tmp_path / "tiny" / "suite.json").read_text())["name"] == SUITE["name"]
    assert "--op_mode=train_w_load" in plan.arguments()
    assert (plan.folder / "console.txt").read_text().count("Run directory") == 1


def test_a_bad_suite_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["suite", str(write_suite(tmp_path, seeds=[])), f"--results_dir={tmp_path}"])
    assert main() == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_checkpoint_of_an_unfinished_run_is_used(plans: list[PlannedRun]) -> None:
    add_checkpoint(write_run(plans[0].folder / "Catch-v0_7", finished=False, **settings_of_run(plans[0])))
    assert f"--load={plans[0].folder / 'Catch-v0_7'}" in plans[0].arguments()
