"""`make train` gives the program what a person means, whatever flags are in ARGS."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

import main
from learner.launch import Job
from tests.support import REPOSITORY


def train_command(*arguments: str) -> list[str]:
    """The arguments that `make train` with these of its own would give to main.py; nothing is run."""
    alone = {name: value for name, value in os.environ.items() if name not in ("ARGS", "PRESET", "MAKEFLAGS", "MAKELEVEL")}
    told = subprocess.run(
        ["make", "--dry-run", "train", *arguments], cwd=REPOSITORY, env=alone, capture_output=True, text=True, check=True
    )
    return shlex.split(told.stdout.splitlines()[-1])[2:]


def prepare(results: Path, *arguments: str) -> Job:
    return main.prepare(["main.py", *train_command(*arguments), "--nopreflight", f"--results_dir={results}"])


@pytest.mark.parametrize(
    ("arguments", "preset", "env"),
    [
        ([], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--seed=2"], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--env=PongNoFrameskip-v4 --seed=2"], "pong_fast", "PongNoFrameskip-v4"),
        (["ARGS=--env=Catch-v0"], "quick", "Catch-v0"),
        (["ARGS=--seed=2 --env Catch-v0"], "quick", "Catch-v0"),
        (["ARGS=--env=BreakoutNoFrameskip-v4"], "none", "BreakoutNoFrameskip-v4"),
        (["ARGS=--env=BreakoutNoFrameskip-v4 --preset=atari"], "atari", "BreakoutNoFrameskip-v4"),
        (["PRESET=quick"], "quick", "Catch-v0"),
        (["PRESET=atari", "ARGS=--env=BreakoutNoFrameskip-v4"], "atari", "BreakoutNoFrameskip-v4"),
    ],
)
def test_a_game_gets_its_own_preset_or_none(tmp_path: Path, arguments: list[str], preset: str, env: str) -> None:
    config = prepare(tmp_path, *arguments).config
    assert (config.settings["preset"], config.env.env) == (preset, env)


def test_a_run_that_goes_on_keeps_its_settings(tmp_path: Path) -> None:
    assert "--preset=none" in train_command("ARGS=--op_mode=train_w_load")
    with pytest.raises(ValueError, match="no run under"):
        prepare(tmp_path, "ARGS=--op_mode=train_w_load")
