"""`--resume_if_exists`: a command that is repeated begins a run, resumes it, and leaves it once it is finished."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from learner.runs.resuming_newest import newest_run, resume_if_exists
from tests.support import catch_flags, run_main


def command(results: Path, *more: str, **settings: object) -> str:
    """Run the command that is repeated. Returns what it printed."""
    flags = [flag for flag in catch_flags(**settings) if settings or "environment_max_steps" not in flag]
    done = run_main("--op_mode=train", "--resume_if_exists", f"--results_dir={results}", *flags, *more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def runs(results: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted(results.iterdir()) if not path.is_symlink()]


def steps_of(run: RunDirectory) -> int:
    return load_checkpoint(run.checkpoint_paths()[-1]).counters.steps


def test_a_repeated_command_begins_resumes_and_ends(tmp_path: Path) -> None:
    assert "has a checkpoint" in command(tmp_path, environment_max_steps=400)
    (run,) = runs(tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    finished = command(tmp_path, environment_max_steps=400)
    assert finished.splitlines()[-1].startswith("Finished before: 400 of 400 steps.")
    assert len(finished.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == kept
    resumed = command(tmp_path, environment_max_steps=800)
    assert f"resume_if_exists: resumes {run.path}" in resumed
    assert "environment_max_steps=800 counts from the start of the first run" in resumed
    assert [steps_of(each) for each in runs(tmp_path)] == [800]
    more = command(tmp_path, "--more_steps=200")
    assert "more_steps is not used" not in more
    assert [steps_of(each) for each in runs(tmp_path)] == [1000]


def test_runs_of_other_agents_and_environments_are_left(tmp_path: Path) -> None:
    command(tmp_path, environment_max_steps=200)
    command(tmp_path, environment_max_steps=200, agent="a2c")
    command(tmp_path, environment_max_steps=200, env="Recall-v0", unroll_length=5)
    assert len(runs(tmp_path)) == 3
    of_a2c = newest_run(tmp_path, {"env": "Catch-v0", "agent": "a2c"})
    assert of_a2c is not None
    assert of_a2c.settings["agent"] == "a2c"
    assert "Finished before" in command(tmp_path, environment_max_steps=200, agent="a2c")
    command(tmp_path, environment_max_steps=200, env="Catch-v0, Avoid-v0")
    assert "Finished before" in command(tmp_path, environment_max_steps=200, env="Catch-v0,Avoid-v0")


def test_the_newest_checkpoint_decides_and_runs_without_one_do_not_count(tmp_path: Path) -> None:
    for name, age in (("a", 100), ("b", 10), ("c", 50)):
        run = RunDirectory(tmp_path / name)
        run.checkpoints.mkdir(parents=True)
        run.config.write_text('{"settings": {"env": "Catch-v0"}}')
        path = run.checkpoint_path(1)
        path.touch()
        os.utime(path, (10**9 - age,) * 2)
    empty = RunDirectory(tmp_path / "d")
    empty.path.mkdir()
    empty.config.write_text('{"settings": {"env": "Catch-v0"}}')
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.json").write_text("damaged")
    found = newest_run(tmp_path, {"env": "Catch-v0", "agent": "vtrace"})
    assert found is not None
    assert found.path.name == "b"
    served = RunDirectory(tmp_path / "c")
    served.config.write_text('{"settings": {"env": "served:Game", "worker_kind": "served"}}')
    given = {"resume_if_exists": True, "worker_kind": "served", "results_dir": str(tmp_path)}
    assert resume_if_exists("train", given)[:2] == ("train_w_load", {**given, "load": str(served.path)})
    assert newest_run(tmp_path / "gone", {"env": "Catch-v0", "agent": "vtrace"}) is None


@pytest.mark.parametrize("flag", ["--resume_if_exists=maybe", "--checkpoint_seconds=-1", "--log_graph=2"])
def test_bad_values_are_refused(flag: str, tmp_path: Path) -> None:
    done = run_main("--op_mode=train", f"--results_dir={tmp_path / 'r'}", *catch_flags(), flag)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {flag.partition('=')[0][2:]}: wanted ")
    assert not (tmp_path / "r").exists()
