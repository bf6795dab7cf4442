"""The cost of priorities is measured on full ones of the size that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.priorities import ROWS, filled, main, measure


def test_every_row_can_be_drawn() -> None:
    priorities = filled(5, np.random.default_rng(2))
    assert priorities.count == 5 * ROWS
    assert len(set(priorities.tree.leaves.tolist())) == 5 * ROWS


def test_costs_are_times_and_a_median_is_no_less_than_the_least() -> None:
    costs = measure(10 * ROWS, 8, turns=20)
    assert all(median >= least > 0 for median, least in costs)


def test_the_command_prints_a_line_for_draws_and_one_for_updates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--leaves=200", "--batch=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["draw", "update"]
