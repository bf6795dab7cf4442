"""The program as a process of its own whose speed is read from its metrics."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.metrics.writer import read_metrics
from tools.termination import ENDLESS, REPOSITORY

START_SECONDS = 300.0  # until the first row of metrics: imports, and the trajectories that fill replays
ROW_SECONDS = 1.0  # between rows of metrics
LOOK_SECONDS = 0.05
LAST_WORDS = 1000  # characters of a failed program's output that the error repeats


class MeasuredProgram:
    """A training without end that can be suspended. As a context manager, it ends the program and all its processes.

    If the program has ended by itself, `warm_up`, `wait` and `steps_per_second` raise RuntimeError with the end of its output.
    """

    def __init__(self, command: Sequence[str], row_seconds: float = ROW_SECONDS, start_seconds: float = START_SECONDS) -> None:
        """Start the program.

        Args:
            command: main.py with its flags, without those that say where results go, how often they are written, and for how
                many steps the program trains.
            row_seconds: seconds between rows of metrics.
            start_seconds: seconds within which a row of metrics must come.
        """
        self._start_seconds = start_seconds
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name) / "output.txt"
        flags = (f"--results_dir={self._folder.name}", f"--log_period={row_seconds}", ENDLESS)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *flags], cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> MeasuredProgram:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # at once: nothing that it would save is used
        self._process.wait()
        self._folder.cleanup()

    def warm_up(self, seconds: float) -> None:
        """Wait for the first row of metrics, and then for `seconds`. Raises RuntimeError if no row comes."""
        self._newer_row((0.0, 0.0))
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Let the program run for `seconds`."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        last_words = " ".join(self._output.read_text(errors="replace").split())[-LAST_WORDS:]
        raise RuntimeError(f"the program ended by itself with code {code}; its output ends: {last_words}")

    def suspend(self) -> None:
        """Stop all processes of the program until `steps_per_second` continues them."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def steps_per_second(self, seconds: float, settle: float) -> float:
        """Continue the program and return its speed over `seconds`, measured after `settle` seconds."""
        before = self._newest_row()
        os.killpg(self._process.pid, signal.SIGCONT)
        self.wait(settle)
        begin = self._newer_row(before)
        self.wait(seconds)
        end = self._newest_row()
        if end == begin:
            raise RuntimeError(f"wanted several rows of metrics in {seconds:g} s, got none")
        return (end[1] - begin[1]) / (end[0] - begin[0])

    def metrics(self) -> dict[str, np.ndarray]:
        """Return the columns of metrics.csv, or {} before it exists."""
        for path in Path(self._folder.name).glob("*_*/metrics.csv"):
            return read_metrics(path)
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, including those that the program chose for this machine."""
        (path,) = Path(self._folder.name).glob("*_*/config.json")
        settings: dict[str, Any] = json.loads(path.read_text())["settings"]
        return settings

    def _newer_row(self, row: tuple[float, float]) -> tuple[float, float]:
        """The first row that is newer than `row`."""
        end = time.monotonic() + self._start_seconds
        while time.monotonic() < end:
            if (newest := self._newest_row()) > row:
                return newest
            self.wait(LOOK_SECONDS)
        raise RuntimeError(f"no row of metrics within {self._start_seconds:.0f} s")

    def _newest_row(self) -> tuple[float, float]:
        """Seconds and steps of the newest row, zeros before the first one."""
        columns = self.metrics()
        return (float(columns["seconds"][-1]), float(columns["steps"][-1])) if columns else (0.0, 0.0)
