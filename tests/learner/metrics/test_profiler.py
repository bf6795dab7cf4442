"""A profile is a trace of the updates that were asked for; by default there is none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from learner.metrics.profiler import WARM_UP
from learner.runs.directory import RunDirectory
from tests.learner.test_train import run_training
from tests.support import REPOSITORY


def names_in(trace: Path) -> list[str]:
    with gzip.open(trace) as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def traces(run: RunDirectory) -> list[Path]:
    return sorted(run.path.glob("trace_*"))


@pytest.mark.parametrize("learner_threads", [1, 2])
def test_a_trace_shows_the_updates_after_warm_up(tmp_path: Path, learner_threads: int) -> None:
    run, _ = run_training(tmp_path, environment_max_steps=1000, profile=3, learner_threads=learner_threads)
    assert traces(run) == [run.trace_path(WARM_UP + 3)]
    names = names_in(run.trace_path(WARM_UP + 3))
    for stage in ("wait", "batch", "update", "publish"):
        assert names.count(stage) == 3
    assert names.count("aten::addmm") >= 3 * 2 * learner_threads  # the forward passes of every thread
    assert any("AddmmBackward" in name for name in names)


def test_a_run_that_ends_early_writes_a_shorter_trace(tmp_path: Path) -> None:
    run, checkpoint = run_training(tmp_path, environment_max_steps=600, profile=1000)
    assert checkpoint.counters.updates > WARM_UP
    (trace,) = traces(run)
    assert names_in(trace).count("update") == checkpoint.counters.updates - WARM_UP


def test_log_lines_of_the_profiler_stay_off_the_console(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from learner.metrics.profiler import *\n"
        f"profiler = UpdateProfiler(1, RunDirectory(Path({str(tmp_path)!r})), Counters(), gpu=False)\n"
        "for _ in range(WARM_UP + 1): profiler.on_update()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(tmp_path.iterdir())) == 1


def test_by_default_there_is_no_trace(tmp_path: Path) -> None:
    run, _ = run_training(tmp_path, environment_max_steps=600)
    assert traces(run) == []
