"""The evaluation process: its priority, and its results for one request."""

from __future__ import annotations

import errno
import os

import pytest

from learner.evaluation import evaluator_process
from learner.evaluation.evaluator_process import LOWEST_PRIORITY


def test_without_idle_scheduling_the_process_is_only_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    nice: list[int] = []

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    evaluator_process._take_lowest_priority()
    assert nice == [LOWEST_PRIORITY]
