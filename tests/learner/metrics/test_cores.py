"""Cores are counted once: workers, learner, evaluation, other programs and idle cores add up to the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from learner.metrics import cores as module
from learner.metrics.cores import CoreUse, busy_seconds

STATISTICS = """cpu  1 2 3 4 5 6 7 8 9 10
cpu0 100 20 3 9000 700 40 5 6 50 7
cpu1 1000 0 0 0 0 0 0 0 0 0
cpu10 77 0 0 0 0 0 0 0 0 0
intr 5
"""


def test_busy_time_leaves_out_idle_columns_and_those_counted_twice() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(STATISTICS, {0}) == pytest.approx((100 + 20 + 3 + 40 + 5 + 6) / ticks)
    assert busy_seconds(STATISTICS, {0, 1}) == pytest.approx(1174 / ticks)
    assert busy_seconds(STATISTICS, {10}) == pytest.approx(77 / ticks)


class Clocks:
    """CPU seconds that the system would report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers, self.learner = 5.0, 7.0
        self.programs: float | None = 100.0
        monkeypatch.setattr(module.time, "process_time", lambda: self.learner)
        monkeypatch.setattr(module, "_all_programs", lambda cores: self.programs)

    def pass_time(self, workers: float, learner: float, programs: float) -> None:
        self.workers += workers
        self.learner += learner
        if self.programs is not None:
            self.programs += programs


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_all_cores_are_divided(clocks: Clocks) -> None:
    use = CoreUse(8, lambda: clocks.workers, inside=False)
    clocks.pass_time(workers=20.0, learner=10.0, programs=45.0)
    wanted = {"cores/workers": 2.0, "cores/learner": 1.0, "cores/evaluation": 0.5, "cores/others": 1.0, "cores/idle": 3.5}
    assert use.read(10.0, own=3.5) == pytest.approx(wanted)
    clocks.pass_time(workers=4.0, learner=1.0, programs=5.0)
    wanted = {"cores/workers": 0.8, "cores/learner": 0.2, "cores/evaluation": 0.0, "cores/others": 0.0, "cores/idle": 7.0}
    assert use.read(5.0, own=0.98) == pytest.approx(wanted)


def test_workers_inside_the_learner_s_process_are_not_counted_twice(clocks: Clocks) -> None:
    use = CoreUse(2, lambda: clocks.workers, inside=True)
    clocks.pass_time(workers=4.0, learner=9.0, programs=9.0)
    wanted = {"cores/workers": 0.4, "cores/learner": 0.5, "cores/evaluation": 0.0, "cores/others": 0.0, "cores/idle": 1.1}
    assert use.read(10.0, own=0.9) == pytest.approx(wanted)


def test_the_rest_is_idle_if_other_programs_are_unknown(clocks: Clocks) -> None:
    clocks.programs = None
    use = CoreUse(2, lambda: clocks.workers, inside=False)
    clocks.pass_time(workers=10.0, learner=4.0, programs=0.0)
    wanted = {"cores/workers": 1.0, "cores/learner": 0.4, "cores/evaluation": 0.0, "cores/idle": 0.6}
    assert use.read(10.0, own=0.0) == pytest.approx(wanted)


def test_zeros_in_proc_count_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = "".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n" for core in range(1024))
    monkeypatch.setattr(Path, "read_text", lambda path: counts)
    assert module._all_programs(len(os.sched_getaffinity(0))) is None


@pytest.mark.skipif(
    not Path("/proc/stat").is_file() or not busy_seconds(Path("/proc/stat").read_text(), os.sched_getaffinity(0)),
    reason="the system does not tell",
)
def test_this_process_counts_among_all_programs() -> None:
    cores = len(os.sched_getaffinity(0))
    assert module._all_programs(cores + 1) is None
    before, started = module._all_programs(cores), time.process_time()
    while time.process_time() < started + 0.3:
        pass
    after = module._all_programs(cores)
    assert before is not None
    assert after is not None
    assert after - before > 0.2


def test_other_learners_and_their_workers_count_too() -> None:
    others = iter([(1.0, 10.0), (3.0, 14.0)])
    use = CoreUse(4, lambda: 5.0, inside=False, others=lambda: next(others))
    record = use.read(2.0, 3.5)
    assert record["cores/workers"] == pytest.approx(1.0)
    assert record["cores/learner"] == pytest.approx(2.0, abs=0.1)
    assert record["cores/evaluation"] == pytest.approx(0.5, abs=0.1)
