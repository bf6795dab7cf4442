"""Each tracker holds the numbers of TensorBoard, and a broken one is one warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from learner.metrics import trackers
from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory
from tests.support import CATCH, run_main

VARIABLES = ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_DIR")
METRIC = "losses/value_loss"
BLOCK = 32768
"""Bytes of a block of a W&B file. A block has chunks: checksum, length and kind, 7 bytes, and then the data."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def of_wandb(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(run.path.glob("wandb/offline-run-*/*.wandb")):
        data, place, whole = file.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if BLOCK - place % BLOCK < 7:
                place += BLOCK - place % BLOCK
                continue
            length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
            whole += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # a whole record, or its last chunk
                record = Record.FromString(whole)
                whole = b""
                items = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
                if METRIC in items:
                    yield int(items["_step"]), float(items[METRIC])


def of_mlflow(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run.path.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("springbok")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.path.name, "FINISHED")
    assert found.data.params["network"] == "mlp"
    yield from ((each.step, each.value) for each in client.get_metric_history(found.info.run_id, METRIC))


def of_trackio(run: RunDirectory) -> Iterator[tuple[int, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("springbok") == [run.path.name]
    yield from ((row["step"], row[METRIC]) for row in SQLiteStorage.get_logs("springbok", run.path.name) if METRIC in row)


READERS = {"wandb": of_wandb, "mlflow": of_mlflow, "trackio": of_trackio}


def trained(folder: Path, *flags: str) -> RunDirectory:
    settings = {**CATCH, "results_dir": folder, "environment_max_steps": 400, "log_period": 0.001}
    done = run_main("--op_mode=train", *(f"--{name}={value}" for name, value in settings.items()), *flags)
    assert done.returncode == 0, done.stderr
    return RunDirectory((folder / "latest").resolve())


@pytest.mark.parametrize("name", READERS)
def test_a_tracker_holds_the_numbers_of_a_run_and_of_its_continuation(tmp_path: Path, name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is an optional package (requirements-track.txt)")
    run = trained(tmp_path, f"--track={name}")
    first = list(READERS[name](run))
    assert len(first) > 3
    done = run_main("--op_mode=train_w_load", f"--load={run.path}", "--environment_max_steps=600")
    assert done.returncode == 0, done.stderr
    both = list(READERS[name](run))
    assert both[: len(first)] == first
    columns = read_metrics(run.metrics)
    kept = {int(step): value for step, value in zip(columns["steps"], columns[METRIC], strict=True) if value == value}
    assert {step: pytest.approx(value, rel=1e-5) for step, value in both} == kept
    assert max(kept) >= 600


class Broken(trackers.Tracker):
    """Fails in one of its functions. place: the function's name."""

    place = ""
    closed = False

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        super().__init__(run, settings)
        self.fail("__init__")

    def fail(self, place: str) -> None:
        if self.place == place:
            raise RuntimeError("the server\nis gone")

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self.fail("add")

    def close(self) -> None:
        self.fail("close")


@pytest.mark.parametrize("place", ["__init__", "add", "close"])
def test_a_broken_tracker_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    monkeypatch.setattr(Broken, "place", place)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Broken)
    with caplog.at_level(logging.WARNING, "springbok"):
        tracking = trackers.Tracking("wandb", RunDirectory(tmp_path), {})
        for step in range(3):
            tracking.add({METRIC: 1.0}, step)
        tracking.close()
        tracking.close()
    assert [record.message for record in caplog.records] == [
        "--track=wandb has failed: the server is gone; the run continues without it"
    ]


def test_a_run_with_a_broken_tracker_trains_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "place", "add")
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Broken)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    run = trained(tmp_path, "--track=mlflow")
    assert run.log.read_text().count("has failed") == 1
    assert run.summary.is_file()


def test_a_missing_package_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    done = run_main("--op_mode=train", "--preset=quick", "--track=trackio", f"--results_dir={tmp_path}/none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: track: wanted the package trackio with --track=trackio, got ")
    assert not (tmp_path / "none").exists()
