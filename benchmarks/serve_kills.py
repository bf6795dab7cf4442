"""Tests whether a served training survives kills: of its clients, of the process that serves them, and of the trainer.

    python -m benchmarks.serve_kills              # 30 kills in a random order
    python -m benchmarks.serve_kills --count=3

V-trace trains in CartPole, which processes of the Python client play. A kill is survived if all clients play again afterwards
and the run makes updates. A trainer that is killed must leave no process, and the command that resumes it must get its clients
back. While a trainer lives, all finished trajectories must reach it: of the steps that were played, at most those of unfinished
trajectories may be missing. There is a line for each kill, and the exit code is 1 if any was not survived. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.observed_program import name_of, run_in, session_of
from benchmarks.serve import free_port
from learner.runs.checkpoint import load_checkpoint
from tools.termination import ENDLESS, REPOSITORY, end_with, unwind_when_terminated

CLIENTS, SEATS, UNROLL_LENGTH, BATCH_SIZE = 3, 2, 16, 4
KINDS = ("client", "server", "trainer")
BACK_SECONDS = 240.0  # for all to play again, also on a busy machine
BATCHES_THAT_WAIT = 4  # prepared, learned from, and in the queue
END_SECONDS = 15.0  # for the processes of a killed trainer to end
FLAGS = (
    *("--agent=vtrace", "--network=mlp", "--hidden_sizes=16", f"--unroll_length={UNROLL_LENGTH}", f"--batch_size={BATCH_SIZE}"),
    *("--worker_kind=served", "--learner_threads=1", "--log_period=0.2", "--checkpoint_seconds=2", "--verbosity=0", ENDLESS),
)


class ServedRun:
    """A served training and its clients, each a process. A context manager that kills them all at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._log = (folder / "log.txt").open("w")
        self._client = ("-m", "springbok_client", "CartPole-v1", f"--url=ws://127.0.0.1:{self._port}", f"--seats={SEATS}")
        results = f"--results_dir={folder / 'results'}"
        self.trainer = self._start("main.py", "--op_mode=train", results, f"--bind=127.0.0.1:{self._port}", *FLAGS)
        self.clients = [self._start(*self._client, "--patience=600") for _ in range(CLIENTS)]
        self._first_step, self._broken = 0, 0

    def __enter__(self) -> ServedRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.clients, self.trainer):
            for pid in session_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
        self._log.close()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        path = os.environ | {"PYTHONPATH": str(REPOSITORY / "clients" / "python")}
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=path,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, kind: str, generator: random.Random) -> str:
        """Kill a process of this kind, and start its successor. Returns what went wrong; empty if nothing did."""
        if kind == "client":
            index = generator.randrange(CLIENTS)
            self.clients[index].kill()
            self.clients[index].wait()
            self.clients[index] = self._start(*self._client, "--patience=600")
        elif kind == "server":
            os.kill(self._server(), signal.SIGKILL)
            self._broken += 1
        else:
            missing = self.missing()
            session = self.trainer.pid
            self.trainer.kill()
            self.trainer.wait()
            if not wait_for(lambda: not session_of(session), END_SECONDS):
                return f"the trainer left the processes {session_of(session)}"
            newest = run_in(self._folder / "results").checkpoint_paths()[-1]
            self._first_step, self._broken = load_checkpoint(newest).counters.steps, 0
            load = f"--load={self._folder / 'results' / 'latest'}"
            self.trainer = self._start("main.py", "--op_mode=train_w_load", load)
            return missing
        return ""

    def _server(self) -> int:
        """The process id of the served worker."""
        (found,) = (pid for pid in session_of(self.trainer.pid) if name_of(pid).startswith("worker-"))
        return found

    def plays(self) -> str:
        """Wait until all clients play and the run makes updates. Returns what went wrong; empty if nothing did."""
        look: dict[str, Any] = {}

        def all_play() -> bool:
            status = self._status()
            clients = status.get("clients", [])
            look.setdefault("version", status.get("version"))
            return (
                sum(each["seats"] for each in clients) == CLIENTS * SEATS
                and all(each["steps"] > SEATS for each in clients)
                and (status.get("version") or 0) > (look["version"] or 0)  # none while spaces are awaited
            )

        if wait_for(all_play, BACK_SECONDS):
            return ""
        return f"wanted {CLIENTS * SEATS} seats that play and another update within {BACK_SECONDS:g} s, got {self._status()}"

    def missing(self) -> str:
        """Whether finished trajectories are missing. Returns what went wrong; empty if nothing did."""
        newest = self._newest()
        lost = float(newest["served/steps"]) - (float(newest["steps"]) - self._first_step)
        # Each seat has an unfinished trajectory and one that waits, and some batches wait; a killed server has lost the
        # unfinished ones.
        allowed = UNROLL_LENGTH * (CLIENTS * SEATS * (2 + self._broken) + BATCHES_THAT_WAIT * BATCH_SIZE)
        return "" if lost <= allowed else f"wanted at most {allowed} steps on their way, got {lost:g}"

    def has_checkpoint(self) -> bool:
        """Whether the run can be resumed."""
        return any(self._folder.glob("results/latest/checkpoints/update_*.pt")) and bool(self._newest())

    def _newest(self) -> dict[str, str]:
        """The newest row of metrics that a served worker has written into."""
        try:
            with (self._folder / "results/latest/metrics.csv").open(newline="") as file:
                rows = [row for row in csv.DictReader(line for line in file if line.endswith("\n")) if row.get("served/steps")]
        except OSError:
            return {}
        return rows[-1] if rows else {}

    def _status(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/status", timeout=5) as answer:
                status: dict[str, Any] = json.loads(answer.read())
                return status
        except (OSError, ValueError):
            return {}


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until `condition` holds, at most `seconds`. Returns whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def kill_one_after_another(count: int, seed: int, folder: Path) -> int:
    """Kill so many processes, each kind in turn in a random order. Returns how many kills were survived."""
    generator, survived = random.Random(seed), 0
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    generator.shuffle(kinds)
    with ServedRun(folder) as run:
        wrong = run.plays()
        if wrong:
            print(f"before the first kill: {wrong}", flush=True)
            return 0
        for number, kind in enumerate(kinds, 1):
            wait_for(run.has_checkpoint, BACK_SECONDS)
            time.sleep(generator.uniform(0.0, 2.0))
            wrong, started = run.kill(kind, generator), time.monotonic()
            wrong = wrong or run.plays()
            survived += not wrong
            print(f"{number:3d} {kind:8s} {wrong or f'all play after {time.monotonic() - started:.1f} s'}", flush=True)
        time.sleep(1.0)
        if wrong := run.missing():
            print(f"at the end: {wrong}", flush=True)
            return 0
    return survived


def main() -> int:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="kills")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the moments")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="springbok_kills_") as folder:
        survived = kill_one_after_another(flags.count, flags.seed, Path(folder))
    print(f"{survived} of {flags.count} kills survived")
    return int(survived < flags.count)


if __name__ == "__main__":
    end_with(main)
