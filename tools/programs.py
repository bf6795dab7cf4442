"""Runs of main.py in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from checked_files import LockedError, locked
from springbok.process import start
from tools.plan import PlannedRun
from tools.termination import REPOSITORY

CONSOLE = "console.txt"
"""File for the output of a run, in the folder of its plan."""
LEFT_SECONDS = 60.0


class Program(Protocol):
    """A run that has started."""

    def wait(self, seconds: float) -> int | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


Starter = Callable[[PlannedRun, Sequence[int]], Program]
"""Starts a run on some cores."""


def wait_until_free(plan: PlannedRun) -> None:
    """Wait for a run of this plan that a killed command has left: it saves, and ends by itself."""
    deadline = time.monotonic() + LEFT_SECONDS
    while (run := plan.run()) and time.monotonic() < deadline:
        try:
            with locked(run.path, str):
                return
        except (LockedError, OSError):
            time.sleep(0.5)


class RunningProgram:
    """A run of main.py, which has started. It saves and ends if this process dies.

    Args:
        arguments: those of main.py.
        console: file to which its output is added.
        here: the folder in which it runs.
        cores: the cores that it may use; empty for all of this process.
    """

    def __init__(self, arguments: Sequence[str], console: Path, here: Path, cores: Iterable[int] = ()) -> None:
        main = "main.py" if here == REPOSITORY else str(REPOSITORY / "main.py")
        with console.open("ab") as output:
            self._process = start([main, *arguments], cores, cwd=here, stdout=output)
        self._asked = False

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the run, at most so long. Returns its exit code, or None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Let the run save and end; a run that has ended, or was asked before, is left alone."""
        if self._process.poll() is None and not self._asked:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)  # SIGINT does not reach what a worker of Ray has started

    def kill(self) -> None:
        """End the run and its processes at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
