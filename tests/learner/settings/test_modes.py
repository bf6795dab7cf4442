"""Settings that a mode does not use ask nothing of the machine there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents import AGENTS
from learner import prepare as module
from learner.runs.checkpoint import Checkpoint
from learner.settings import check
from learner.settings.check import check_settings
from learner.settings.config import AUTO, DEFAULTS
from learner.settings.modes import without_unused
from learner.settings.schema import default_settings
from setting import TRAINING_MODES
from tests.learner.launching import command, trained

CLUSTER = {"worker_kind": "ray", "ray_runtime_env": "missing.json"}
WORKERS = {"worker_kind": "central", "worker_count": 3, "envs_per_worker": 6, "prepared_batches": 2, "precision": "bfloat16"}


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    find = check.find_spec
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == "ray" else find(name))


def test_a_mode_has_the_defaults_of_what_it_does_not_use() -> None:
    settings = {**DEFAULTS, **WORKERS, **CLUSTER, "ray_address": "host:1", "lr": 0.5, "batch_size": 7, "learner_threads": 3}
    settings |= {"test_episode_count": 5, "learner_count": 2}  # the latter decides what is learned
    used = {"lr": 0.5, "batch_size": 7, "learner_threads": 3, "learner_count": 2}
    assert without_unused("test", settings) == {**DEFAULTS, **used, "test_episode_count": 5}
    assert without_unused("export", settings) == {**DEFAULTS, **used}
    for mode in TRAINING_MODES:
        assert without_unused(mode, settings) == settings


@pytest.mark.parametrize("agent", AGENTS)
def test_a_default_is_that_of_the_agent(agent: str) -> None:
    settings = default_settings(agent)
    assert without_unused("test", {**settings, **WORKERS}) == settings


@pytest.mark.usefixtures("without_ray")
def test_ray_and_the_file_of_its_actors_are_wanted_by_workers_of_ray() -> None:
    check_settings({**DEFAULTS, "ray_runtime_env": "missing.json"})
    with pytest.raises(ValueError, match=r"^ray_runtime_env: wanted .*, got 'missing.json' "):
        check_settings({**DEFAULTS, **CLUSTER})
    with pytest.raises(ValueError, match="^worker_kind: wanted the package ray "):
        check_settings({**DEFAULTS, "worker_kind": "ray"})


@pytest.mark.usefixtures("without_ray")
def test_a_run_of_a_cluster_is_tested_exported_and_resumed_on_a_machine_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints carry the settings of the cluster."""
    run = trained(tmp_path)
    load = module.load_newest

    def of_a_cluster(*given: Any) -> tuple[Path, Checkpoint, list[str]]:
        path, checkpoint, notes = load(*given)
        return path, replace(checkpoint, settings={**checkpoint.settings, **CLUSTER}), notes

    monkeypatch.setattr(module, "load_newest", of_a_cluster)
    for mode in ("test", "export"):
        job = command(tmp_path, mode, load=str(run.path))
        assert job.settings["worker_kind"] == AUTO
        assert job.config.workers.worker_kind != "ray"
    again: dict[str, Any] = {"load": str(run.path), "environment_max_steps": 600}
    with pytest.raises(ValueError, match="^ray_runtime_env: "):
        command(tmp_path, "train_w_load", **again)
    assert command(tmp_path, "train_w_load", worker_kind="cpu", **again).settings["ray_runtime_env"] == "missing.json"
