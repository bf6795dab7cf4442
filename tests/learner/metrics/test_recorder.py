"""A real run writes records under the names that other parts read, and logs its bottleneck."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory
from tests.learner.metrics.test_bottleneck import HALF_IDLE
from tests.learner.test_train import run_training
from tools.watch import newest_bottleneck

NOT_ON_EVERY_SYSTEM = {"cores/others"}


def logged(run: RunDirectory, level: str) -> list[str]:
    """The lines that were logged at a level."""
    return [line.partition(f" {level} ")[2] for line in run.log.read_text().splitlines() if f" {level} " in line]


def test_a_run_logs_its_bottleneck_at_its_end(catch_run: RunDirectory) -> None:
    lines = logged(catch_run, "INFO")
    (bottleneck,) = [line for line in lines if line.startswith("Limited by ")]
    assert lines[lines.index(bottleneck) - 1].startswith("Finished after ")
    assert bottleneck == f"Limited by {newest_bottleneck(catch_run.log)}"


def test_every_record_but_the_first_has_its_bottleneck_in_the_log(catch_run: RunDirectory) -> None:
    records = len(read_metrics(catch_run.metrics)["steps"])
    assert records >= 2
    assert len([line for line in logged(catch_run, "DEBUG") if line.startswith("Limited by ")]) == records - 1


def test_a_record_has_all_numbers_that_the_rules_read(catch_run: RunDirectory) -> None:
    assert set(HALF_IDLE) - set(read_metrics(catch_run.metrics)) <= NOT_ON_EVERY_SYSTEM


def test_a_run_shorter_than_the_period_has_twenty_rows_all_along(tmp_path: Path) -> None:
    run, checkpoint = run_training(tmp_path, log_period=1e5, environment_max_steps=2000, batch_size=2, unroll_length=5)
    steps = read_metrics(run.metrics)["steps"]
    assert steps[-1] == checkpoint.counters.steps
    assert 20 <= len(steps) <= 22
    assert max(np.diff(steps)) <= 2000 / 20 + 40  # an update more
