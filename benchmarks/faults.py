"""Tests whether a run survives faults: processes are killed or stopped, environments fail, disks are full.

    python -m benchmarks.faults                        # all rows, a quarter of an hour on two cores
    python -m benchmarks.faults --rows=kill_workers --count=10

Each row trains Catch-v0 in its own run and makes its faults at random moments with a fixed seed. The output is a table,
which `--json=FILE` also writes. The exit code is 1 if any fault was not survived. Linux only (/proc).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.disk_faults import full_disk, read_only_disk
from benchmarks.fault_row import Row
from benchmarks.faulty_program import FAULTS, FAULTY_CATCH
from benchmarks.observed_program import LOOK_SECONDS, ObservedProgram, session_of
from benchmarks.output import write_json
from benchmarks.rows import read_command_line, run_rows
from learner.runs.checkpoint import Counters, load_checkpoint
from tools.termination import end_with, unwind_when_terminated

GOES_ON_SECONDS = 10.0  # within which an update must follow a fault
NOTICED_SECONDS = 5.0  # within which a fault must be noticed
WATCHED_SECONDS = 15.0  # for which a row waits for something that should take less time
SHARED_MEMORY = Path("/dev/shm")
ENDLESS_RESTARTS = "--max_worker_restarts=1000000"


def kill_workers(count: int, generator: random.Random, folder: Path) -> Row:
    """Kill a random worker at a random moment, also one that starts: updates continue, and no resource grows."""

    def one_of(program: ObservedProgram) -> tuple[int, set[int]]:
        worker = generator.choice(program.workers())
        return worker, {worker}

    return _kill(Row("kill_workers"), one_of, NOTICED_SECONDS, count, generator, folder)


def kill_fork_server(count: int, generator: random.Random, folder: Path) -> Row:
    """Kill the process that forks workers, which ends all workers. Its successor has to import PyTorch first."""

    def with_all(program: ObservedProgram) -> tuple[int, set[int]]:
        return program.fork_server(), set(program.workers())

    return _kill(Row("kill_fork_server"), with_all, GOES_ON_SECONDS, count, generator, folder)


def _kill(
    row: Row,
    choose: Callable[[ObservedProgram], tuple[int, set[int]]],
    within: float,
    count: int,
    generator: random.Random,
    folder: Path,
) -> Row:
    """Kill processes one after another.

    Args:
        row: the result to fill in.
        choose: returns the next process to kill, and the workers that end with it.
        within: seconds within which the workers must be replaced.
        count: number of processes to kill.
        generator: chooses moments and processes.
        folder: results folder of the run.
    """
    ends, updates, killed = [], [], 0
    before: dict[str, int] = {}
    with ObservedProgram(folder, "--env=Catch-v0", ENDLESS_RESTARTS) as program:
        program.wait_for_work()
        for _ in range(count):
            time.sleep(generator.uniform(0.0, 3.0))
            victim, workers = choose(program)
            os.kill(victim, signal.SIGKILL)
            row.faults += 1
            killed += len(workers)
            updates.append(program.wait_for_update(GOES_ON_SECONDS))
            ends.append(program.wait_for(lambda dead=workers: _both_replaced(program, dead), WATCHED_SECONDS))  # type: ignore[misc]
            row.survived += updates[-1] < GOES_ON_SECONDS and ends[-1] < within
            before = before or program.holds()  # after the first fault: what starts once and stays is no growth
        program.wait_for_work()
        program.wait_for(lambda: program.metric("workers/restarts") == killed)
        after, restarts = program.holds(), int(program.metric("workers/restarts"))
        exit_code = program.stop()
    grown = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    if exit_code or grown or restarts != killed:
        row.survived = 0
    held = ", ".join(f"{number} {name}" for name, number in after.items())
    row.notes = (
        f"next update within {max(updates):.1f} s, both workers replaced {max(ends):.1f} s later, {restarts} restarts "
        f"counted, {held} after the first and the last fault"
        + (f", grown: {grown}" if grown else "")
        + f", exit code {exit_code}"
    )
    return row


def _both_replaced(program: ObservedProgram, dead: set[int]) -> bool:
    """Whether both workers run, and neither is one of `dead`."""
    running = set(program.workers())
    return len(running) == 2 and not running & dead


def stop_workers(count: int, generator: random.Random, folder: Path) -> Row:
    """Stop a random worker with SIGSTOP: the program takes it for hanging, kills and replaces it."""
    row = Row("stop_workers")
    ends = []
    with ObservedProgram(folder, "--env=Catch-v0", ENDLESS_RESTARTS) as program:
        for _ in range(count):
            program.wait_for_work()
            time.sleep(generator.uniform(0.0, 2.0))
            victim = generator.choice(program.workers())
            os.kill(victim, signal.SIGSTOP)
            row.faults += 1
            ends.append(program.wait_for_end(victim, WATCHED_SECONDS))
            row.survived += ends[-1] < NOTICED_SECONDS and program.wait_for_update(GOES_ON_SECONDS) < GOES_ON_SECONDS
    row.notes = f"killed after {min(ends):.1f} to {max(ends):.1f} s"
    return row


def environment_faults(count: int, generator: random.Random, folder: Path) -> Row:
    """Let an environment raise, hang, spin, exit or crash in a step, in one worker at a time."""
    row = Row("environment_faults")
    ends: dict[str, list[float]] = {name: [] for name in FAULTS}
    faulty = ("-m", "benchmarks.faulty_program")
    with ObservedProgram(folder, f"--env={FAULTY_CATCH}", ENDLESS_RESTARTS, module=faulty) as program:
        for index in range(count):
            name = list(FAULTS)[index % len(FAULTS)]
            program.wait_for_work()
            time.sleep(generator.uniform(0.0, 1.0))
            restarts = program.metric("workers/restarts")
            (folder / name).touch()
            row.faults += 1
            ends[name].append(_wait_for_restart(program, restarts))
            row.survived += ends[name][-1] < NOTICED_SECONDS and program.wait_for_update(GOES_ON_SECONDS) < GOES_ON_SECONDS
    row.notes = "replaced within " + ", ".join(f"{max(seconds):.1f} s ({name})" for name, seconds in ends.items() if seconds)
    return row


def _wait_for_restart(program: ObservedProgram, before: float) -> float:
    return program.wait_for(lambda: program.metric("workers/restarts") > before, WATCHED_SECONDS)


def kill_learner(count: int, generator: random.Random, folder: Path) -> Row:
    """Kill the learner at a random moment: nothing is left behind, and the run resumes from its last checkpoint."""
    row = Row("kill_learner")
    ends = []
    orphans, shared_before = 0, set(SHARED_MEMORY.iterdir())
    saved = Counters()
    for index in range(count + 1):
        with ObservedProgram(folder, "--checkpoint_period=20", *_train_or_resume(index)) as program:
            program.wait_for_checkpoint(after=saved.updates)
            newest = load_checkpoint(program.run.checkpoint_paths()[-1]).counters
            if index:
                row.survived += _goes_on(saved, newest, program.run.log.read_text())
            if index == count:
                break
            time.sleep(generator.uniform(0.0, 2.0))
            program.kill()
            row.faults += 1
            killed = time.monotonic()
            while (left := session_of(program.process.pid)) and time.monotonic() - killed < NOTICED_SECONDS:
                time.sleep(LOOK_SECONDS)
            ends.append(time.monotonic() - killed)
            orphans += len(left)
            saved = load_checkpoint(program.run.checkpoint_paths()[-1]).counters
    segments = set(SHARED_MEMORY.iterdir()) - shared_before
    if segments or orphans:
        row.survived = 0
    row.notes = (
        f"{orphans} orphans (all ended within {max(ends):.2f} s), {len(segments)} shared memory segments left, "
        f"resumed with every counter of the last checkpoint"
    )
    return row


def _goes_on(saved: Counters, newest: Counters, log: str) -> bool:
    """Whether a resumed run started where `saved` was, and all of its counters have grown since."""
    started = f"at step {saved.steps:,}\n" in log.rsplit("Resuming from", 1)[-1]
    return started and all(getattr(newest, name) > value for name, value in asdict(saved).items())


def kill_in_checkpoint(count: int, generator: random.Random, folder: Path) -> Row:
    """Kill the learner while it writes a checkpoint: every checkpoint can be loaded, and the run resumes."""
    row = Row("kill_in_checkpoint")
    attempts = newest = 0
    while row.faults < count:
        with ObservedProgram(folder, "--checkpoint_period=1", *_train_or_resume(attempts)) as program:
            attempts += 1
            program.wait_for_checkpoint(after=newest)
            checkpoints, before = program.run.checkpoints, newest
            time.sleep(generator.uniform(0.0, 0.5))
            known = set(os.listdir(checkpoints))
            while not _unfinished(checkpoints, known) and program.process.poll() is None:
                pass  # writing takes milliseconds
            time.sleep(generator.uniform(0.0, 0.002))
            program.kill()
            newest = max(load_checkpoint(path).counters.updates for path in program.run.checkpoint_paths())
            if _unfinished(checkpoints, known):
                row.faults += 1
                row.survived += newest > before
    row.notes = f"{attempts} attempts, of which {row.faults} left a half-written checkpoint"
    return row


def _unfinished(checkpoints: Path, known: set[str]) -> bool:
    """Whether there is a partial file that is not one of `known`."""
    return any(not name.endswith(".pt") for name in set(os.listdir(checkpoints)) - known)


def _train_or_resume(attempt: int) -> tuple[str, ...]:
    return ("--op_mode=train_w_load", "--load=latest") if attempt else ("--op_mode=train", "--env=Catch-v0")


ROWS: dict[str, tuple[Callable[[int, random.Random, Path], Row], int]] = {
    "kill_workers": (kill_workers, 100),
    "kill_fork_server": (kill_fork_server, 10),
    "stop_workers": (stop_workers, 10),
    "environment_faults": (environment_faults, 2 * len(FAULTS)),
    "kill_learner": (kill_learner, 30),
    "kill_in_checkpoint": (kill_in_checkpoint, 30),
    "full_disk": (full_disk, 30),
    "read_only_disk": (read_only_disk, 10),
}
"""Name -> the row and its usual number of faults."""


def main() -> int:
    unwind_when_terminated()
    arguments = read_command_line(__doc__, ROWS, "faults")
    results = []
    for row in run_rows(ROWS, arguments):
        print(f"{row.name:20s} {row.survived:4d} of {row.faults:4d} survived; {row.notes}", flush=True)
        results.append(row)
    write_json(arguments.json, [asdict(row) for row in results])
    return int(any(row.survived < row.faults for row in results))


if __name__ == "__main__":
    end_with(main)
