"""The time to the first update is that of a real run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.first_update import has_update, seconds_to_first_update
from learner.runs.directory import RunDirectory
from tests.support import catch_flags


def test_an_update_is_recognised_by_a_whole_row_of_metrics(tmp_path: Path) -> None:
    assert not has_update(tmp_path)
    run = RunDirectory.create(tmp_path, "Catch-v0")
    assert not has_update(tmp_path)
    run.metrics.write_text("seconds,steps,updates\n")
    assert not has_update(tmp_path)
    run.metrics.write_text("seconds,steps,updates\n0.1,80,")
    assert not has_update(tmp_path)
    run.metrics.write_text("seconds,steps,updates\n0.1,80,1\n")
    assert has_update(tmp_path)


def test_the_run_ends_after_its_first_update() -> None:
    started = time.monotonic()
    took = seconds_to_first_update(catch_flags(environment_max_steps=10**9))
    assert 0.2 < took < time.monotonic() - started  # the import of PyTorch alone takes longer


def test_a_run_that_cannot_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"no update within \d+ s; exit code 2"):
        seconds_to_first_update(["--env=Nothing-v0"])
