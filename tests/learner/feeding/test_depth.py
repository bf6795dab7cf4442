"""As few batches are prepared as keep the learner from waiting."""

from __future__ import annotations

import pytest

from learner.feeding.depth import WINDOW, PreparationDepth


def test_the_depth_starts_at_one() -> None:
    assert PreparationDepth(4).now == 1


def test_every_late_batch_raises_the_depth_up_to_its_maximum() -> None:
    depth = PreparationDepth(3)
    seen = []
    for late in (True, False, True, True, True):
        depth.take(0, late=late)
        seen.append(depth.now)
    assert seen == [2, 2, 3, 3, 3]


def test_a_batch_that_was_always_ready_lowers_the_depth() -> None:
    depth = PreparationDepth(4)
    depth.now = 4
    seen = []
    for _ in range(5 * WINDOW):
        depth.take(depth.now - 1, late=False)
        seen.append(depth.now)
    assert seen[WINDOW - 2 : WINDOW] == [4, 3]
    assert seen[WINDOW - 1 :: WINDOW] == [3, 2, 1, 1, 1]


def test_a_batch_that_was_needed_once_keeps_the_depth() -> None:
    depth = PreparationDepth(4)
    depth.now = 2
    for taken in range(WINDOW):
        depth.take(0 if taken == 40 else 1, late=False)
    assert depth.now == 2
    for _ in range(WINDOW):
        depth.take(1, late=False)
    assert depth.now == 1


def test_a_late_batch_restarts_the_window() -> None:
    depth = PreparationDepth(4)
    for _ in range(WINDOW - 1):
        depth.take(1, late=False)
    depth.take(1, late=True)
    for _ in range(WINDOW - 1):
        depth.take(1, late=False)
    assert depth.now == 2
    depth.take(1, late=False)
    assert depth.now == 1


@pytest.mark.parametrize("most", [1, 4])
def test_waiting_for_trajectories_changes_nothing(most: int) -> None:
    depth = PreparationDepth(most)
    for _ in range(3 * WINDOW):
        depth.take(0, late=False)
    assert depth.now == 1
