"""Steady speed is that of whole windows, after warm-up and before the end."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.throughput import mean_parts, steady_steps_per_second
from learner.costs import Costs


def metrics(rows: list[tuple[float, float]]) -> dict[str, np.ndarray]:
    """rows: seconds, and the steps per second since the row before."""
    seconds = np.array([at for at, _ in rows])
    speeds = np.array([speed for _, speed in rows])
    return {"seconds": seconds, "steps": np.cumsum(speeds * np.diff(seconds, prepend=0.0))}


WINDOW = 5.0
STEADY = [(12.0, 1.0), (17.0, 10.0), (22.0, 20.0), (27.0, 30.0), (32.0, 40.0)]
"""Warm-up: the first row comes after 12 s, and 20 s later all is steady."""


def test_whole_windows_count() -> None:
    rows = [*STEADY, (37.0, 100.0), (42.0, 110.0), (47.0, 600.0), (49.0, 5.0)]
    np.testing.assert_allclose(steady_steps_per_second(metrics(rows), WINDOW), [100.0, 110.0, 600.0])


def test_a_window_cut_short_by_a_checkpoint_is_left_out() -> None:
    rows = [*STEADY, (37.0, 100.0), (37.1, 900.0), (42.1, 110.0), (42.2, 900.0), (47.2, 120.0), (49.0, 5.0)]
    np.testing.assert_allclose(steady_steps_per_second(metrics(rows), WINDOW), [100.0, 110.0, 120.0])


@pytest.mark.parametrize("rows", [STEADY, [*STEADY, (37.0, 100.0)], STEADY[:1]])
def test_too_little_is_said(rows: list[tuple[float, float]]) -> None:
    with pytest.raises(RuntimeError, match="wanted rows of metrics for 30 s"):
        steady_steps_per_second(metrics(rows), WINDOW)


def test_what_the_parts_cost_is_the_mean_of_before_and_after() -> None:
    before = (Costs(env=1.0, act=2.0, act_doubled=3.0, learn=4.0, frames_per_step=4), 100.0)
    after = (Costs(env=2.0, act=4.0, act_doubled=5.0, learn=8.0, frames_per_step=4), 300.0)
    assert mean_parts(before, after) == (Costs(env=1.5, act=3.0, act_doubled=4.0, learn=6.0, frames_per_step=4), 200.0)
