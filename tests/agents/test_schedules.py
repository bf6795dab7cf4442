"""Schedules over a run's progress."""

from __future__ import annotations

import pytest

from agents.schedules import linear_schedule


@pytest.mark.parametrize(("progress", "expected"), [(0, 6e-4), (0.25, 4.5e-4), (0.5, 3e-4), (1.0, 0.0), (5.0, 0.0)])
def test_linear_schedule_to_zero_is_half_at_half_way(progress: float, expected: float) -> None:
    assert linear_schedule(6e-4, 0.0, progress) == pytest.approx(expected)


def test_linear_schedule_ends_at_its_end_and_may_rise() -> None:
    assert linear_schedule(2.0, 4.0, 0.75) == pytest.approx(3.5)
    assert linear_schedule(2.0, 4.0, 1.01) == 4.0


def test_linear_schedule_is_exact_at_both_ends() -> None:
    assert linear_schedule(4.8e-4, 1e-7, 0.0) == 4.8e-4
    assert linear_schedule(4.8e-4, 0.0, 1.0) == 0.0


def test_negative_progress_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^progress: wanted"):
        linear_schedule(1.0, 0.0, -0.1)
