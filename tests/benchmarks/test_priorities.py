"""The cost of priorities is measured on full ones of the size that was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import priorities
from benchmarks.priorities import ROWS, compare, config_of, filled, main, measure


def test_every_row_can_be_drawn() -> None:
    full = filled(5, np.random.default_rng(2))
    assert full.count == 5 * ROWS
    assert len(set(full.tree.leaves.tolist())) == 5 * ROWS


def test_costs_are_times_and_a_median_is_no_less_than_the_least() -> None:
    costs = measure(10 * ROWS, 8, turns=20)
    assert all(median >= least > 0 for median, least in costs)


def test_the_ratio_is_that_of_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is ten times slower in most windows; the first one does not count."""
    speeds = iter([1000.0, 1.0, 10.0, 10.0, 10.0, 10.0, 1.0, 1.0])
    calls: list[float] = []

    def seconds_of(call: Callable[[], object], seconds: float) -> float:
        call()
        calls.append(next(speeds) if len(calls) % 2 == 0 else 20 * calls[-1])
        return calls[-1]

    monkeypatch.setattr(priorities, "cpu_seconds", seconds_of)
    found = compare(config_of(4), 10 * ROWS, 0.0)
    assert found == {"priorities_ms": 10_000, "update_ms": 200_000, "priorities_per_update": pytest.approx(0.05)}


def test_the_command_prints_a_line_for_draws_one_for_updates_and_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--leaves=200", "--batch=4", "--seconds=0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["draw", "update", "priorities"]
    assert 0 < float(lines[-1].rpartition(" ")[2]) < 10
