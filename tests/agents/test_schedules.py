"""Schedules over frames."""

from __future__ import annotations

import pytest

from agents.schedules import linear_schedule


@pytest.mark.parametrize(("frames", "expected"), [(0, 6e-4), (250, 4.5e-4), (500, 3e-4), (1000, 0.0), (5000, 0.0)])
def test_linear_schedule_to_zero_is_half_at_half_way(frames: int, expected: float) -> None:
    assert linear_schedule(6e-4, 0.0, frames, 1000) == pytest.approx(expected)


def test_linear_schedule_ends_where_asked_and_may_rise() -> None:
    assert linear_schedule(2.0, 4.0, 75, 100) == pytest.approx(3.5)
    assert linear_schedule(2.0, 4.0, 101, 100) == 4.0


def test_linear_schedule_is_exact_at_both_ends() -> None:
    assert linear_schedule(4.8e-4, 1e-7, 0, 200_000_000) == 4.8e-4
    assert linear_schedule(4.8e-4, 0.0, 200_000_000, 200_000_000) == 0.0


@pytest.mark.parametrize(("frames", "total", "name"), [(-1, 10, "frames"), (0, 0, "total_frames"), (5, -1, "total_frames")])
def test_impossible_frame_counts_are_refused(frames: int, total: int, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: wanted"):
        linear_schedule(1.0, 0.0, frames, total)
