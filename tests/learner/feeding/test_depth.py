"""Prepared batches are as few as keep the learner from waiting."""

from __future__ import annotations

import pytest

from learner.feeding.depth import WINDOW, PreparationDepth


def test_one_is_prepared_at_first() -> None:
    assert PreparationDepth(4).now == 1


def test_it_grows_by_one_for_every_late_batch_up_to_the_most() -> None:
    depth = PreparationDepth(3)
    seen = []
    for late in (True, False, True, True, True):
        depth.take(0, late=late)
        seen.append(depth.now)
    assert seen == [2, 2, 3, 3, 3]


def test_a_batch_that_always_lay_waiting_is_spared() -> None:
    depth = PreparationDepth(4)
    depth.now = 4
    seen = []
    for _ in range(5 * WINDOW):
        depth.take(depth.now - 1, late=False)
        seen.append(depth.now)
    assert seen[WINDOW - 2 : WINDOW] == [4, 3]
    assert seen[WINDOW - 1 :: WINDOW] == [3, 2, 1, 1, 1]


def test_one_that_was_needed_a_single_time_stays() -> None:
    depth = PreparationDepth(4)
    depth.now = 2
    for taken in range(WINDOW):
        depth.take(0 if taken == 40 else 1, late=False)
    assert depth.now == 2
    for _ in range(WINDOW):
        depth.take(1, late=False)
    assert depth.now == 1


def test_a_late_batch_starts_the_window_anew() -> None:
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
def test_a_learner_that_waits_for_trajectories_changes_nothing(most: int) -> None:
    depth = PreparationDepth(most)
    for _ in range(3 * WINDOW):
        depth.take(0, late=False)
    assert depth.now == 1
