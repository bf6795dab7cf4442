"""Trainings in this process, started as `main.py` starts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learner import launch
from learner.runs.directory import RunDirectory
from tests.support import CATCH

MIXTURE = json.dumps(
    [{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 40, "sample_ratio": 0.5}]
)


def command(results: Path, mode: str, **given: Any) -> launch.Job:
    given = {"results_dir": str(results), **given}
    if mode == "train":
        given = {**CATCH, "environment_max_steps": 300, "log_period": 1e5, **given}
    return launch.prepare(mode, given, ["main.py", mode])


def trained(results: Path, **given: Any) -> RunDirectory:
    assert launch.run(command(results, "train", **given)) == 0
    return RunDirectory((results / "latest").resolve())


def resume(run: RunDirectory, capsys: pytest.CaptureFixture[str], **given: Any) -> tuple[RunDirectory, str]:
    """Resume a run. Returns the run directory and the console output."""
    capsys.readouterr()
    given = {"environment_max_steps": 600, **given}
    assert launch.run(command(run.path.parent, "train_w_load", load=str(run.path), **given)) == 0
    return RunDirectory((run.path.parent / "latest").resolve()), capsys.readouterr().out
