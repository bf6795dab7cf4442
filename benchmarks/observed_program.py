"""The program as a process of its own, and what can be seen of it from outside: its files, and /proc (Linux)."""

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

REPOSITORY = Path(__file__).resolve().parent.parent
LOOK_SECONDS = 0.02
LOOKS = 5
START_SECONDS = 120.0
ENDLESS = "--environment_max_steps=1000000000000"
SMALL = ("--network=mlp", "--worker_count=2", "--learner_threads=1", "--log_period=0.2", "--verbosity=0")


class ObservedProgram:
    """A training of a toy without end, in a session of its own; a context manager that kills it. flags: those of main.py."""

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
        """The newest row's; 0 before the first."""
        try:
            with self.run.metrics.open(newline="") as file:
                header, *rows = csv.reader(line for line in file if line.endswith("\n"))
            return float(rows[-1][header.index(name)])
        except (FileNotFoundError, ValueError, IndexError):
            return 0.0

    def workers(self) -> list[int]:
        """Worker processes that run."""
        return [pid for pid in session_of(self.process.pid) if _name_of(pid).startswith("worker-")]

    def fork_server(self) -> int:
        """The process that the workers are forked from. Raises RuntimeError where none is there."""
        for pid in session_of(self.process.pid):
            if _name_of(pid).strip() == "fork-server":
                return pid
        raise RuntimeError("wanted a fork server among the program's processes, found none")

    def workers_at_work(self) -> list[int]:
        """Workers that have stepped, as the run's log says."""
        said = re.findall(r"\(pid (\d+), seed \d+\) is at work", self.run.log.read_text())
        return [pid for pid in self.workers() if str(pid) in said]

    def wait_for(self, condition: Callable[[], object], seconds: float = START_SECONDS) -> float:
        """Seconds until `condition` holds, `seconds` where it does not by then. Raises RuntimeError when the program ended."""
        started = time.monotonic()
        while not condition() and time.monotonic() - started < seconds:
            if self.process.poll() is not None:
                raise RuntimeError(f"the program ended with {self.process.returncode}; its log:\n{self.run.log.read_text()}")
            time.sleep(LOOK_SECONDS)
        return min(time.monotonic() - started, seconds)

    def wait_for_work(self) -> None:
        """Until both workers step and updates are made."""
        self.wait_for(lambda: self.metric("updates") and len(self.workers_at_work()) == 2)

    def wait_for_update(self, seconds: float) -> float:
        before = self.metric("updates")
        return self.wait_for(lambda: self.metric("updates") > before, seconds)

    def wait_for_end(self, worker: int, seconds: float) -> float:
        return self.wait_for(lambda: worker not in self.workers(), seconds)

    def wait_for_checkpoint(self, after: int) -> None:
        """Until there is a checkpoint of a later update."""
        self.wait_for(lambda: newest_update(self.results) > after)

    def holds(self) -> dict[str, int]:
        """What must not grow: the least of several looks, as a file may just be open, or a process may just start."""
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
        """Ask it to stop and save. Returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL to the learner alone."""
        self.process.kill()
        self.process.wait()


def session_of(leader: int) -> list[int]:
    """Processes of a session that run (no zombies)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(folder.name))
    return found


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def run_in(results: Path) -> RunDirectory:
    """The only run of a results folder; before it is made, one that holds nothing."""
    runs = [path for path in results.glob("*_*") if path.is_dir() and not path.is_symlink()]
    return RunDirectory(runs[0] if runs else results)


def newest_update(results: Path) -> int:
    """Of the newest checkpoint, 0 where there is none."""
    names = [path.stem for path in run_in(results).checkpoint_paths()]
    return int(names[-1].split("_")[1]) if names else 0
