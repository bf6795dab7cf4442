"""The doctor weighs rows by their time, leaves out start-up, and is silent where there is too little to see."""

from __future__ import annotations

from learner.metrics.bottleneck_report import Doctor
from tests.learner.metrics.test_bottleneck import HALF_IDLE, STARVED
from tests.support import small_config


def doctor() -> Doctor:
    return Doctor(small_config(worker_kind="cpu", worker_count=2), cores=8)


def limit_of(*rows: tuple[dict[str, float], float]) -> str | None:
    """The limit over rows and their seconds."""
    seen = doctor()
    for row, seconds in rows:
        seen.add({**HALF_IDLE, **row}, seconds)
    verdict = seen.verdict()
    return verdict.limit if verdict else None


def test_the_first_row_is_start_up() -> None:
    assert limit_of((STARVED, 100.0)) is None
    assert limit_of((STARVED, 100.0), ({}, 10.0)) == "learning"
    assert limit_of(({}, 100.0), (STARVED, 10.0)) == "stepping"


def test_a_row_counts_as_long_as_it_lasted() -> None:
    """The learner waits 38 % in one and not at all in the other; 15 % is where it counts."""
    assert limit_of(({}, 1.0), (STARVED, 10.0), ({}, 30.0)) == "learning"
    assert limit_of(({}, 1.0), (STARVED, 30.0), ({}, 10.0)) == "stepping"


def test_a_few_seconds_are_too_few() -> None:
    assert limit_of(({}, 10.0), (STARVED, 4.0)) is None
    assert limit_of(({}, 10.0), (STARVED, 3.0), (STARVED, 3.0)) == "stepping"


def test_each_row_has_a_verdict_of_its_own() -> None:
    seen = doctor()
    row = {**HALF_IDLE, **STARVED}
    assert seen.add(row, 10.0) is None
    verdicts = [seen.add(row, 10.0), seen.add(HALF_IDLE, 10.0)]
    assert [verdict and verdict.limit for verdict in verdicts] == ["stepping", "learning"]
    assert seen.add(row, 1.0) is None


def test_a_number_that_only_some_rows_have_is_the_mean_of_those() -> None:
    seen = doctor()
    seen.add(HALF_IDLE, 10.0)
    seen.add({**HALF_IDLE, "replay/queue/effective_sample_size": 0.5}, 10.0)
    seen.add({name: value for name, value in HALF_IDLE.items() if "effective" not in name}, 90.0)
    verdict = seen.verdict()
    assert verdict
    assert "worth 50 %" in verdict.line
