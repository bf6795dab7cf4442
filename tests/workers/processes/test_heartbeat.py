"""A hanging worker is told from a slow, a waiting and a starting one, and nobody is blamed for time that the learner slept."""

from __future__ import annotations

import pytest

from workers.processes.heartbeat import MAX_CHECK_SECONDS, PAUSE_FACTOR, START_SECONDS, Heartbeat

LOOK = 0.25
TIMEOUT = 2.0


class Watched:
    """A worker under a clock of its own, looked at every `LOOK` seconds."""

    def __init__(self, first_step: float | None = 0.01) -> None:
        self.now, self.busy_seconds = 1000.0, 7.0
        self.heartbeat = Heartbeat(TIMEOUT, self.busy_seconds, self.now)
        if first_step is not None:
            self.step(first_step)

    def step(self, seconds: float = 0.01) -> bool:
        self.busy_seconds += seconds
        return self.look(LOOK)

    def look(self, passed: float = LOOK, *, has_work: bool = True) -> bool:
        self.now += passed
        return self.heartbeat.hangs(self.busy_seconds, has_work, self.now)

    def quiet_until_it_hangs(self) -> float:
        seconds = LOOK
        while not self.look():
            seconds += LOOK
            assert seconds < 10 * START_SECONDS
        return seconds


def test_a_worker_without_a_step_for_the_timeout_hangs() -> None:
    assert Watched().quiet_until_it_hangs() == TIMEOUT + LOOK


def test_every_step_starts_the_time_anew() -> None:
    worker = Watched()
    for _ in range(50):
        worker.look(TIMEOUT / 4)
        assert not worker.step()
    assert worker.heartbeat.quiet == 0.0


def test_waiting_for_free_slots_is_not_hanging() -> None:
    worker = Watched()
    worker.look()
    assert not any(worker.look(has_work=False) for _ in range(1000))
    assert worker.quiet_until_it_hangs() == TIMEOUT + LOOK


def test_starting_has_its_own_limit() -> None:
    worker = Watched(first_step=None)
    assert worker.quiet_until_it_hangs() == START_SECONDS + LOOK
    assert not worker.heartbeat.started


def test_a_worker_that_starts_slowly_is_not_given_long_later() -> None:
    worker = Watched(first_step=None)
    for _ in range(200):
        worker.look()
    worker.step()
    assert worker.quiet_until_it_hangs() == TIMEOUT + LOOK


@pytest.mark.parametrize("pause", [1.0, 1.75])
def test_a_pause_that_it_came_back_from_makes_for_patience(pause: float) -> None:
    worker = Watched()
    for _ in range(round(pause / LOOK)):
        assert not worker.look()
    worker.step()
    assert worker.quiet_until_it_hangs() == PAUSE_FACTOR * pause + LOOK


def test_a_slow_first_step_makes_for_patience() -> None:
    assert Watched(first_step=1.5).quiet_until_it_hangs() == PAUSE_FACTOR * 1.5 + LOOK


def test_time_in_which_the_learner_slept_does_not_count() -> None:
    """A laptop that was suspended, a stopped process group, a machine that swaps: looks come late."""
    worker = Watched()
    assert not worker.look(10_000.0)
    assert worker.heartbeat.quiet == MAX_CHECK_SECONDS
    assert not worker.look(10_000.0)
