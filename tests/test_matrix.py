"""Every kind of observation with every kind of action, core and mask: trains, resumes to the bit, plays, and is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learner import launch
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from tests.matrix_env import ACTIONS, OBSERVATIONS
from tests.support import same

COMBINATIONS = [
    (observations, actions, core, mask)
    for observations in OBSERVATIONS
    for actions in ACTIONS
    for core in ("none", "lstm")
    for mask in ((False, True) if actions != "box" else (False,))
]
SMALL: dict[str, Any] = {
    "reproducible": True,
    "envs_per_worker": 2,
    "unroll_length": 4,
    "batch_size": 2,
    "environment_max_steps": 64,
    "checkpoint_period": 3,
    "log_period": 1e5,
    "hidden_sizes": "8",
    "core_size": 8,
    "lr_end_value": 6e-4,  # the learning rate stays: the parts of a run have other budgets
    "verbosity": 0,
}


def run(mode: str, **given: Any) -> int:
    return launch.run(launch.prepare(mode, given, ["main.py", mode]))


def newest_agent(results: Path) -> dict[str, Any]:
    return load_checkpoint(RunDirectory((results / "latest").resolve()).checkpoint_paths()[-1]).agent


@pytest.mark.parametrize(("observations", "actions", "core", "mask"), COMBINATIONS)
def test_it_trains_resumes_plays_and_is_exported(
    observations: str, actions: str, core: str, mask: bool, tmp_path: Path
) -> None:
    env = f"tests.matrix_env:Matrix-{observations}-{actions}{'-mask' if mask else ''}-v0"
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    settings = {**SMALL, "env": env, "core": core}
    assert run("train", **settings, results_dir=whole) == 0
    assert run("train", **{**settings, "environment_max_steps": 32}, results_dir=parts) == 0
    assert run("train_w_load", load=f"{parts}/latest", environment_max_steps=64, verbosity=0, results_dir=parts) == 0
    assert same(newest_agent(Path(whole)), newest_agent(Path(parts)))
    assert run("test", load=f"{parts}/latest", test_episode_count=3, verbosity=0, results_dir=parts) == 0
    assert run("export", load=f"{parts}/latest", verbosity=0, results_dir=parts) == 0
    exported = next((Path(parts) / "latest").resolve().glob("exported_*/policy.json"))
    description = json.loads(exported.read_text())
    assert max(description["largest_difference"].values()) < 1e-3
