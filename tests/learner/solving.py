"""Trainings in this process that end as soon as they have learned enough."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.recorder import MetricsRecorder
from learner.runs.checkpoint import Checkpoint
from tests.learner.test_train import run_training


def train_until(wanted: float, folder: Path, **settings: Any) -> Checkpoint:
    """Train until the mean return of the last hundred episodes exceeds `wanted`, or until the step budget ends.

    The newest checkpoint holds these returns. The budget still sets the schedules.
    """
    on_update = MetricsRecorder.on_update

    def report_and_stop(recorder: MetricsRecorder) -> None:
        on_update(recorder)
        returns = recorder.episodes.recent
        if len(returns) == returns.maxlen and np.mean(returns) > wanted:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsRecorder, "on_update", report_and_stop)
        _, checkpoint = run_training(folder, **settings)
    assert len(checkpoint.returns) == 100
    return checkpoint


def solves(wanted: float, folder: Path, **settings: Any) -> bool:
    """Whether the mean return of the last hundred episodes exceeds `wanted` within the step budget."""
    return float(np.mean(train_until(wanted, folder, **settings).returns)) > wanted
