"""Parts are timed in windows that alternate, without their warm-up, within the time that is given."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from learner.machine import timing
from learner.machine.timing import TimedPart, seconds_of_steps


class FakeClock:
    """Wall time that moves only when a call takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", self.read)

    def read(self) -> float:
        return self.now


class Calls:
    """A function whose calls take these seconds, one after another, and the last of them from then on."""

    def __init__(self, clock: FakeClock, *seconds: float) -> None:
        self.clock = clock
        self.seconds = list(seconds)
        self.made: list[float] = []  # when each call began

    def __call__(self) -> None:
        self.made.append(self.clock.now)
        self.clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]

    def part(self, device: str = "cpu") -> TimedPart:
        return TimedPart(self, 1, self.clock.read, device=torch.device(device))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


def test_the_warm_up_does_not_count_even_if_it_takes_longer_than_the_budget(clock: FakeClock) -> None:
    """An earlier version counted only this call, and expected a quarter of the speed."""
    assert Calls(clock, 0.4, 0.001).part().seconds_a_step(0.1) == pytest.approx(0.001)


def test_the_median_of_the_calls_counts(clock: FakeClock) -> None:
    assert Calls(clock, 0.4, 0.1, 0.1, 0.3, 0.2, 0.3, 9.0).part().seconds_a_step(0.99) == pytest.approx(0.2)


def test_a_busy_moment_spoils_no_part(clock: FakeClock) -> None:
    """The machine is four times slower for a third of the time."""

    def call() -> None:
        clock.now += 0.004 if 0.05 < clock.now < 0.25 else 0.001

    found = seconds_of_steps({name: TimedPart(call, 1, clock.read) for name in ("env", "act", "learn")}, 0.2)
    assert found == {name: pytest.approx(0.001) for name in ("env", "act", "learn")}


def test_windows_of_all_parts_alternate(clock: FakeClock) -> None:
    calls = {name: Calls(clock, 0.01) for name in ("env", "act")}
    seconds_of_steps({name: each.part() for name, each in calls.items()}, 0.2)
    order = sorted((when, name) for name, each in calls.items() for when in each.made[1:])  # without the warm-up
    changes = sum(first[1] != second[1] for first, second in pairwise(order))
    assert changes == 2 * timing.WINDOWS - 1


def test_a_slow_first_call_on_a_cpu_is_the_only_one(clock: FakeClock) -> None:
    calls = Calls(clock, 5.0, 1.0)
    assert calls.part().seconds_a_step(0.4) == 5.0
    assert len(calls.made) == 1


def test_a_call_longer_than_the_budget_is_made_once(clock: FakeClock) -> None:
    calls = Calls(clock, 0.7)
    assert calls.part().seconds_a_step(0.2) == pytest.approx(0.7)
    assert len(calls.made) == 2


def test_the_first_calls_of_a_gpu_do_not_count_however_long_they_take(clock: FakeClock) -> None:
    """They load libraries. If they counted, one worker would seem enough for such a slow learner."""
    calls = Calls(clock, 5.0, 1.0, 0.4, 0.15)
    assert calls.part("cuda").seconds_a_step(0.39) == pytest.approx(0.15)


@pytest.mark.parametrize("tick", [0.0001, 0.01, 0.5])
def test_a_clock_that_stands_still_during_a_call_is_replaced_by_the_wall(clock: FakeClock, tick: float) -> None:
    part = TimedPart(Calls(clock, 0.003), 1, lambda: tick * (clock.now // tick))
    assert part.seconds_a_step(0.2) == pytest.approx(0.003, rel=0.1)


def test_seconds_are_those_of_one_step(clock: FakeClock) -> None:
    assert TimedPart(Calls(clock, 0.03), 10, clock.read).seconds_a_step(0.1) == pytest.approx(0.003)


def test_work_that_waits_is_measured_by_the_wall(clock: FakeClock) -> None:
    """As an environment that asks a simulator: 10 ms of which the CPU works one."""
    waiting = TimedPart(Calls(clock, 0.010), 1, lambda: clock.now / 10)
    assert waiting.seconds_a_step(0.2) == pytest.approx(0.010)


def test_a_busy_machine_does_not_look_like_waiting(clock: FakeClock) -> None:
    """Two calls in three last five times as long, because another program has the core."""
    work = [0.0]

    def call() -> None:
        work[0] += 0.001
        clock.now += 0.001 if round(work[0] / 0.001) % 3 == 0 else 0.005

    assert TimedPart(call, 1, lambda: work[0]).seconds_a_step(0.2) == pytest.approx(0.001)
