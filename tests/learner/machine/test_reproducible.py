"""A reproducible run has the same settings on every machine, and its checkpoints carry them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from learner import launch, prepare
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.runs.checkpoint import load_checkpoint, save_checkpoint
from learner.settings.config import AUTO, DEFAULTS
from learner.settings.schema import table_of
from tests.support import REPOSITORY

FIXTURE = REPOSITORY / "tests" / "fixtures" / "run_of_format_2"
SMALL = Machine(cores=1, memory_bytes=10**10, gpu=None)
LARGE = Machine(cores=64, memory_bytes=10**11, gpu="GPU 9000", bfloat16=frozenset({"cpu", "cuda"}))
BITS = ("device", "learner_threads", "precision")


def prepared(mode: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, **given: Any) -> launch.Job:
    monkeypatch.setattr(prepare, "detect_machine", lambda: machine)
    return launch.prepare(mode, given, ["main.py"])


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A reproducible run of an earlier version whose checkpoint kept `auto`; its config.json knows the values."""
    run = Path(shutil.copytree(FIXTURE, tmp_path / "Catch-v0_1"))
    (path,) = (run / "checkpoints").glob("update_*.pt")
    checkpoint = load_checkpoint(path)
    checkpoint.settings.update(dict.fromkeys(BITS, AUTO))
    save_checkpoint(path, checkpoint)
    config = json.loads((run / "config.json").read_text())
    config["settings"] |= {"learner_threads": 2, "precision": "bfloat16"}
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_every_machine_settles_the_same_values() -> None:
    settings = {**DEFAULTS, "reproducible": True}
    assert fit_to_machine(settings, SMALL)[0] == fit_to_machine(settings, LARGE)[0]


def test_a_checkpoint_carries_what_was_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepared("train", LARGE, monkeypatch, env="Catch-v0", network="mlp", frames_stacked=1, reproducible=True)
    assert job.config.settings == job.settled
    assert AUTO not in [value for name, value in job.config.settings.items() if table_of("vtrace")[name].setting.auto]


def test_given_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"reproducible": True, "learner_threads": 3, "precision": "bfloat16"}
    settled, _ = fit_to_machine({**DEFAULTS, **given}, LARGE)
    assert (settled["learner_threads"], settled["precision"]) == (3, "bfloat16")


def test_an_old_run_resumes_with_the_values_of_its_config_file(old_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"load": str(old_run), "environment_max_steps": 3000}
    training = prepared("train_w_load", LARGE, monkeypatch, **given).config.training
    assert (training.device, training.learner_threads, training.precision) == ("cpu", 2, "bfloat16")
    training = prepared("train_w_load", LARGE, monkeypatch, **given, learner_threads=1).config.training
    assert (training.learner_threads, training.precision) == (1, "bfloat16")


def test_an_old_checkpoint_alone_resumes_with_one_warning(old_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old_run / "config.json").unlink()
    given = {"load": str(next((old_run / "checkpoints").glob("update_*.pt"))), "environment_max_steps": 3000}
    job = prepared("train_w_load", SMALL, monkeypatch, **given)
    (warning,) = [line for line in job.notes if "bit-identical" in line]
    assert all(name in warning for name in BITS)
    assert (job.config.training.learner_threads, job.config.training.precision) == (1, "float32")


def test_a_run_that_is_no_longer_reproducible_is_fitted_to_its_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Path(shutil.copytree(FIXTURE, tmp_path / "Catch-v0_1"))
    (path,) = (run / "checkpoints").glob("update_*.pt")
    checkpoint = load_checkpoint(path)
    checkpoint.settings.update(fit_to_machine({**DEFAULTS, **checkpoint.settings}, SMALL)[0])
    save_checkpoint(path, checkpoint)
    given = {"load": str(run), "environment_max_steps": 3000, "reproducible": False, "device": "cpu"}
    config = prepared("train_w_load", LARGE, monkeypatch, **given).config
    assert (config.workers.worker_kind, config.workers.worker_count, config.training.learner_threads) == ("cpu", LARGE.cores, 8)
    assert config.training.batch_size == checkpoint.settings["batch_size"]
