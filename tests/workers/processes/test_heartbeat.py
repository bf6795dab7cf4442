"""The heartbeat tells a hanging worker from a slow, a waiting and a starting one, and ignores time without checks."""

from __future__ import annotations

import pytest

from workers.processes.heartbeat import MAX_CHECK_SECONDS, PAUSE_FACTOR, Heartbeat, start_timeout

CHECK = 0.25
TIMEOUT, START_TIMEOUT = 2.0, 30.0


class Watched:
    """A worker with a clock of its own that is checked every `CHECK` seconds."""

    def __init__(self, first_step: float | None = 0.01) -> None:
        self.now, self.busy_seconds = 1000.0, 7.0
        self.heartbeat = Heartbeat(self.busy_seconds, self.now, timeout=TIMEOUT, start_timeout=START_TIMEOUT)
        if first_step is not None:
            self.step(first_step)

    def step(self, seconds: float = 0.01) -> bool:
        self.busy_seconds += seconds
        return self.check()

    def check(self, passed: float = CHECK, *, has_work: bool = True) -> bool:
        self.now += passed
        return self.heartbeat.hangs(self.busy_seconds, has_work, self.now)

    def seconds_until_it_hangs(self) -> float:
        seconds = CHECK
        while not self.check():
            seconds += CHECK
            assert seconds < 10 * START_TIMEOUT
        return seconds


def test_a_worker_without_a_step_for_the_timeout_hangs() -> None:
    assert Watched().seconds_until_it_hangs() == TIMEOUT + CHECK


def test_every_step_restarts_the_timeout() -> None:
    worker = Watched()
    for _ in range(50):
        worker.check(TIMEOUT / 4)
        assert not worker.step()
    assert worker.heartbeat.quiet_seconds == 0.0


def test_waiting_for_free_slots_is_not_hanging() -> None:
    worker = Watched()
    worker.check()
    assert not any(worker.check(has_work=False) for _ in range(1000))
    assert worker.seconds_until_it_hangs() == TIMEOUT + CHECK


def test_the_start_has_its_own_timeout() -> None:
    worker = Watched(first_step=None)
    assert worker.heartbeat.limit == START_TIMEOUT
    assert worker.seconds_until_it_hangs() == START_TIMEOUT + CHECK
    assert not worker.heartbeat.stepped


@pytest.mark.parametrize("environments", [16, 700, 5000])
def test_the_start_timeout_is_four_times_what_one_core_takes_to_build_the_environments(environments: int) -> None:
    assert start_timeout(environments) > 4 * 0.2 * environments


def test_a_slow_start_does_not_raise_the_later_limit() -> None:
    worker = Watched(first_step=None)
    for _ in range(100):
        worker.check()
    worker.step()
    assert worker.seconds_until_it_hangs() == TIMEOUT + CHECK


@pytest.mark.parametrize("pause", [1.0, 1.75])
def test_a_pause_that_ended_with_a_step_raises_the_limit(pause: float) -> None:
    worker = Watched()
    for _ in range(round(pause / CHECK)):
        assert not worker.check()
    worker.step()
    assert worker.seconds_until_it_hangs() == PAUSE_FACTOR * pause + CHECK


def test_a_slow_first_step_raises_the_limit() -> None:
    assert Watched(first_step=1.5).seconds_until_it_hangs() == PAUSE_FACTOR * 1.5 + CHECK


def test_time_in_which_the_learner_did_not_run_does_not_count() -> None:
    """After a suspended machine, a stopped process group or swapping, checks come late."""
    worker = Watched()
    assert not worker.check(10_000.0)
    assert worker.heartbeat.quiet_seconds == MAX_CHECK_SECONDS
    assert not worker.check(10_000.0)


def test_environments_that_start_slowly_get_more_time() -> None:
    assert start_timeout(10, 30.0) - start_timeout(10) == pytest.approx(10 * 29.0)
