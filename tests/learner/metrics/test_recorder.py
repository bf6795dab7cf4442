"""What a real run writes and says: rows of metrics under the names that others read, and what limits it."""

from __future__ import annotations

from benchmarks.watch import newest_verdict
from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory
from tests.learner.metrics.test_bottleneck import HALF_IDLE

WHERE_THE_SYSTEM_TELLS = {"cores/others"}


def said(run: RunDirectory, level: str) -> list[str]:
    """The lines of the log that were said at a level."""
    return [line.partition(f" {level} ")[2] for line in run.log.read_text().splitlines() if f" {level} " in line]


def test_a_run_says_at_its_end_what_limited_it(catch_run: RunDirectory) -> None:
    lines = said(catch_run, "INFO")
    (verdict,) = [line for line in lines if line.startswith("Limited by ")]
    assert lines[lines.index(verdict) - 1].startswith("Finished after ")
    assert verdict == f"Limited by {newest_verdict(catch_run.log)}"


def test_every_row_but_the_first_has_a_verdict_in_the_log(catch_run: RunDirectory) -> None:
    rows = len(read_metrics(catch_run.metrics)["steps"])
    assert rows >= 2
    assert len([line for line in said(catch_run, "DEBUG") if line.startswith("Limited by ")]) == rows - 1


def test_a_row_has_all_that_a_verdict_rests_on(catch_run: RunDirectory) -> None:
    assert set(HALF_IDLE) - set(read_metrics(catch_run.metrics)) <= WHERE_THE_SYSTEM_TELLS
