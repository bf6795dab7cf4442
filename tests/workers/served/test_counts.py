"""The counts of a server, and how they go on in the process that follows a killed one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workers.served.counts import EPISODES_OF_A_POINT, FIRST_SPAN, LAYOUT, POINTS, Counts, read_counts


def shared() -> dict[str, np.ndarray]:
    return {name: np.zeros(field.shape, field.dtype) for name, field in LAYOUT.items()}


def play(counts: Counts, episodes: int, length: int, first_return: int = 0) -> None:
    for episode in range(episodes):
        counts.steps += length
        counts.ended(first_return + episode)
    counts.write(1, 2, 0)


def metrics(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    return read_counts(arrays["served"])


def test_the_next_process_goes_on_with_the_numbers_of_the_one_before() -> None:
    arrays = shared()
    first = Counts(arrays)
    play(first, 20, 100)
    first.cut = 1
    first.write(4, 5, 5)
    second = Counts(arrays, first_step=50)
    play(second, 10, 100, first_return=20)
    found = metrics(arrays)
    assert (found["served/steps"], found["served/episodes"], found["served/refused"]) == (3000, 30, 5)
    assert (found["served/clients"], found["served/seats"]) == (1, 2)
    status = second.status()
    assert (status["steps"], status["episodes"]) == (3050, 30)
    assert status["return_mean"] == 24.5  # of this process
    assert status["curve"] == [[1100, 4.5], [2100, 14.5], [3050, 24.5]]


def test_a_long_run_has_a_curve_of_as_many_points() -> None:
    counts = Counts(shared())
    episodes, length = 10 * POINTS, FIRST_SPAN
    play(counts, episodes, length)
    status = counts.status()
    curve = np.array(status["curve"])
    assert POINTS // 4 <= len(curve) <= POINTS
    assert np.all(np.diff(curve, axis=0) > 0)
    # The return of each episode is its number, so that a mean says where it was taken.
    assert np.allclose(curve[:, 1], curve[:, 0] / length, atol=EPISODES_OF_A_POINT + 32)
    assert status["steps"] == episodes * length
