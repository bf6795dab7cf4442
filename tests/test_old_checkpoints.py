"""A run that an earlier version of this program has left resumes with its replay, is tested and exported.

tests/fixtures/run_of_format_2 is a reproducible run of 199 updates on Catch (queue and elite replay, policy cloning). It is
never made anew: its bytes are what users have on their disks.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_main

FIXTURE = REPOSITORY / "tests" / "fixtures" / "run_of_format_2"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "Catch-v0_1"))


def test_it_resumes_with_its_replay_and_its_environments(old_run: Path) -> None:
    done = run_main("--op_mode=train_w_load", f"--load={old_run}", "--environment_max_steps=3000")
    assert done.returncode == 0, done.stderr
    assert "replay_000000199.pt" in done.stdout
    assert "bit-identical" not in done.stdout
    assert "start empty" not in done.stdout
    summary = json.loads((old_run / "summary.json").read_text())
    assert summary["steps"] == 3000
    assert summary["updates"] > 290


def test_it_is_tested(old_run: Path) -> None:
    done = run_main("--op_mode=test", f"--load={old_run}", "--test_episode_count=5")
    assert done.returncode == 0, done.stderr
    (result,) = old_run.glob("evaluation_199_*.json")
    assert json.loads(result.read_text())["summary"]["episodes"] == 5


def test_it_is_exported(old_run: Path) -> None:
    done = run_main("--op_mode=export", f"--load={old_run}")
    assert done.returncode == 0, done.stderr
    description = json.loads((old_run / "exported_199" / "policy.json").read_text())
    assert description["actions"] == ["LEFT", "STAY", "RIGHT"]
