"""The program as a process of its own, observed from outside by its files and /proc (Linux)."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faulty_program import FOLDER_VARIABLE
from learner.runs.directory import RunDirectory
from tools.termination import ENDLESS, REPOSITORY

LOOK_SECONDS = 0.02
LOOKS = 5
START_SECONDS = 120.0
SMALL = ("--network=mlp", "--worker_count=2", "--learner_threads=1", "--log_period=0.2", "--verbosity=0")


class ObservedProgram:
    """A training without end of a small network, in its own session. As a context manager, it kills the learner at the end.

    flags: of main.py. module: how Python starts the program.
    """

    def __init__(self, results: Path, *flags: str, module: tuple[str, ...] = ("main.py",)) -> None:
        self.results = results
        self.process = subprocess.Popen(
            [sys.executable, *module, *SMALL, ENDLESS, f"--results_dir={results}", *flags],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, FOLDER_VARIABLE: str(results)},
        )

    def __enter__(self) -> ObservedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def run(self) -> RunDirectory:
        """The only run in the results folder."""
        return run_in(self.results)

    def metric(self, name: str) -> float:
        """Return a value of the newest row of metrics, 0 before the first row."""
        try:
            with self.run.metrics.open(newline="") as file:
                header, *rows = csv.reader(line for line in file if line.endswith("\n"))
            return float(rows[-1][header.index(name)])
        except (FileNotFoundError, ValueError, IndexError):
            return 0.0

    def workers(self) -> list[int]:
        """Return the ids of the running worker processes."""
        return [pid for pid in session_of(self.process.pid) if name_of(pid).startswith("worker-")]

    def fork_server(self) -> int:
        """The process id of the fork server. Raises RuntimeError if there is none."""
        for pid in session_of(self.process.pid):
            if name_of(pid).strip() == "fork-server":
                return pid
        raise RuntimeError("wanted a fork server among the program's processes, found none")

    def workers_at_work(self) -> list[int]:
        """Return the ids of the running workers that have stepped, by the run's log."""
        stepped = re.findall(r"\(pid (\d+), seed \d+\) is at work", self.run.log.read_text())
        return [pid for pid in self.workers() if str(pid) in stepped]

    def wait_for(self, condition: Callable[[], object], seconds: float = START_SECONDS) -> float:
        """Wait until `condition` holds, at most `seconds`. Returns the seconds waited.

        Raises RuntimeError if the program has ended.
        """
        started = time.monotonic()
        while not condition() and time.monotonic() - started < seconds:
            if self.process.poll() is not None:
                raise RuntimeError(f"the program ended with {self.process.returncode}; its log:\n{self.run.log.read_text()}")
            time.sleep(LOOK_SECONDS)
        return min(time.monotonic() - started, seconds)

    def wait_for_work(self) -> None:
        """Wait until both workers step and updates are made."""
        self.wait_for(lambda: self.metric("updates") and len(self.workers_at_work()) == 2)

    def wait_for_update(self, seconds: float) -> float:
        """Wait for another update, at most `seconds`. Returns the seconds waited."""
        before = self.metric("updates")
        return self.wait_for(lambda: self.metric("updates") > before, seconds)

    def wait_for_end(self, worker: int, seconds: float) -> float:
        """Wait until a worker process has ended, at most `seconds`. Returns the seconds waited."""
        return self.wait_for(lambda: worker not in self.workers(), seconds)

    def wait_for_checkpoint(self, after: int) -> None:
        """Wait until there is a checkpoint of a later update than `after`."""
        self.wait_for(lambda: newest_update(self.results) > after)

    def holds(self) -> dict[str, int]:
        """Return counts of resources that must not grow.

        Each is the minimum of several looks, because a file may be open or a process may start for a moment.
        """
        looks = [self._holds_now()]
        while len(looks) < LOOKS:
            time.sleep(LOOK_SECONDS)
            looks.append(self._holds_now())
        return {name: min(look[name] for look in looks) for name in looks[0]}

    def _holds_now(self) -> dict[str, int]:
        folder = Path(f"/proc/{self.process.pid}")
        return {
            "descriptors": len(list((folder / "fd").iterdir())),
            "threads": len(list((folder / "task").iterdir())),
            "processes": len(session_of(self.process.pid)),
        }

    def stop(self) -> int:
        """Ask the program to save and stop. Returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def kill(self) -> None:
        """Send SIGKILL to the learner process only."""
        self.process.kill()
        self.process.wait()


def session_of(leader: int) -> list[int]:
    """Return the processes of a session, without zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(folder.name))
    return found


def name_of(pid: int) -> str:
    """The name of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def run_in(results: Path) -> RunDirectory:
    """Return the only run of a results folder, or a run without any files before it is made."""
    runs = [path for path in results.glob("*_*") if path.is_dir() and not path.is_symlink()]
    return RunDirectory(runs[0] if runs else results)


def newest_update(results: Path) -> int:
    """Return the update of the newest checkpoint, 0 if there is none."""
    names = [path.stem for path in run_in(results).checkpoint_paths()]
    return int(names[-1].split("_")[1]) if names else 0
