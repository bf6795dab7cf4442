"""No command waits for an environment without a limit: it ends with one line that names the call, and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import user_class
from learner import launch
from learner.runs.directory import RunDirectory
from tests.support import CATCH, run_main, runs
from tests.wrappers.environments import HERE
from wrappers import answering

ENV = f"{HERE}:TestHanging-v1"
LIMIT = 1.0


@pytest.fixture(autouse=True)
def short_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STEP_SECONDS", "GRACE_SECONDS"):
            patch.setattr(answering, name, LIMIT)
        patch.setattr(answering, "START_SECONDS", 3 * LIMIT)
        yield


def command(folder: Path, where: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command whose environment hangs in `where`."""
    given = {**CATCH, "env": ENV, "env_args": json.dumps({"where": where}), "results_dir": folder, "op_mode": "train"}
    given |= {"calibrate_input": False, "worker_timeout": 0.5, "eval_period": 0, "test_episode_count": 1, **settings}
    return run_main(*(f"--{name}={value}" for name, value in given.items()))


@pytest.fixture(scope="module")
def run_that_hung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process that has saved although its environment hung in a step."""
    folder = tmp_path_factory.mktemp("hung")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STEP_SECONDS", "GRACE_SECONDS"):
            patch.setattr(answering, name, LIMIT)
        done = command(folder, "step")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"the step of {ENV} has not answered for 1 s ({HERE.replace('.', '/')}.py:" in done.stdout.splitlines()[-1]
    run = RunDirectory((folder / "latest").resolve())
    assert run.checkpoint_paths()
    return run.path


@pytest.mark.parametrize(
    ("where", "call", "settings"),
    [
        ("step", "step", {"op_mode": "test"}),
        ("reset", "constructor", {"op_mode": "test"}),
        ("render", "rendering", {"op_mode": "test", "render": True}),
        ("step", "step", {"op_mode": "export"}),
        ("constructor", "constructor", {"op_mode": "export"}),
        ("reset", "constructor", {"calibrate_input": True}),
    ],
)
def test_commands_end_with_a_line_that_names_the_call(
    where: str, call: str, settings: dict[str, Any], run_that_hung: Path, tmp_path: Path
) -> None:
    done = command(tmp_path, where, load=run_that_hung, **settings)
    assert (done.returncode, done.stderr) == (1, "")
    assert [line for line in done.stdout.splitlines() if f"the {call} of {ENV} has not answered for" in line]


def test_an_agent_whose_file_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setattr(user_class, "START_SECONDS", 3 * LIMIT)
    done = command(tmp_path, "", agent=f"{tmp_path}/hanging.py:Agent")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"the import of {tmp_path}/hanging.py has not answered for 3 s" in line


def test_a_close_that_hangs_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    done = command(tmp_path, "close", environment_max_steps=400)
    assert done.stderr == ""
    assert f"the closing of {ENV} has not answered" in done.stdout
    assert RunDirectory((tmp_path / "latest").resolve()).checkpoint_paths()


def test_a_program_that_must_end_at_once_leaves_no_process(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(launch, "family_of", lambda _: [os.getpid(), child.pid])
    with subprocess.Popen(["sleep", "600"]) as child:
        launch.end_at_once("it has not answered")
    assert codes == [1]
    assert not runs(child.pid)
    assert lines == ["error: it has not answered"]
