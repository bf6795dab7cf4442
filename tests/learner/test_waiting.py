"""A long wait before training is announced once, a short one not at all."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from learner import launch
from learner.early_processes import EarlyProcesses
from learner.waiting import Progress, announced
from tests.learner.launching import command
from tests.support import small_plan


@pytest.mark.parametrize(("seconds", "times"), [(0.3, 1), (0.0, 0)])
def test_only_a_long_wait_is_announced_and_only_once(seconds: float, times: int, lines: list[str]) -> None:
    threads = threading.active_count()
    with announced("Measuring it", patience=0.1):
        time.sleep(seconds)
    time.sleep(0.2)
    assert lines.count("Measuring it") == times
    assert threading.active_count() == threads


def test_the_timer_ends_with_a_wait_that_fails(lines: list[str]) -> None:
    threads = threading.active_count()
    with pytest.raises(OSError, match="gone"), announced("Measuring it", patience=60):
        raise OSError("gone")
    assert threading.active_count() == threads
    assert not lines


def test_measuring_a_slow_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    def measure_slowly(*_: Any, **__: Any) -> None:
        time.sleep(0.3)

    monkeypatch.setattr(launch, "wants_preflight", lambda *_: True)
    monkeypatch.setattr(launch, "measure_costs", measure_slowly)
    monkeypatch.setattr(launch, "announced", lambda line: announced(line, patience=0.1))
    launch.measured(command(tmp_path, "train"))
    assert [line for line in lines if "Catch-v0" in line and "--nopreflight" in line]


def test_long_random_play_says_so(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    def play_slowly(*_: Any, **__: Any) -> torch.Tensor:
        time.sleep(0.3)
        return torch.ones(1)

    monkeypatch.setattr("learner.early_processes.random_observations", play_slowly)
    monkeypatch.setattr("learner.early_processes.announced", lambda line: announced(line, patience=0.1))
    with EarlyProcesses(small_plan(worker_kind="serial"), None) as early_processes:
        assert torch.equal(early_processes.random_observations(), torch.ones(1))
    assert [line for line in lines if "Catch-v0" in line and "random play" in line]


def test_progress_is_logged_at_growing_intervals_with_the_time_left(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    now = 0.0
    monkeypatch.setattr("learner.waiting.monotonic", lambda: now)
    progress = Progress("Playing", steps=800, limit=60.0)
    times = []
    for _ in range(100):
        before, now = len(lines), now + 1.0
        progress(int(now))
        times += [round(now)] * (len(lines) - before)
    assert times == [8, 16, 32, 62, 92]
    assert "8 of 800" in lines[0]
    assert "53 s" in lines[0], "the limit ends it before its steps do"
