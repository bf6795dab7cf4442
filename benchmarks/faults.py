"""Whether a run survives what can happen to it: processes killed, stopped, failing, at random moments with a fixed seed.

    python -m benchmarks.faults                        # every row, about a quarter of an hour on two cores
    python -m benchmarks.faults --rows=kill_workers --count=10

Each row trains Catch-v0 in a run of its own and counts. Prints a table; `--json=FILE` writes it too. Exits with 1 where a row
fails. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks.disk_faults import full_disk, read_only_disk
from benchmarks.fault_row import Row
from benchmarks.faulty_program import FAULTS, FAULTY_CATCH
from benchmarks.observed_program import LOOK_SECONDS, ObservedProgram, session_of
from benchmarks.termination import end_with, unwind_when_terminated
from learner.runs.checkpoint import Counters, load_checkpoint

GOES_ON_SECONDS = 10.0  # within which updates must go on after a fault
NOTICED_SECONDS = 5.0
WATCHED_SECONDS = 15.0  # that a row waits for what should take less than that
SHARED_MEMORY = Path("/dev/shm")
ENDLESS_RESTARTS = "--max_worker_restarts=1000000"


def kill_workers(count: int, generator: random.Random, folder: Path) -> Row:
    """SIGKILL to a random worker at a random moment, starting ones too: updates go on, nothing grows."""

    def one_of(program: ObservedProgram) -> tuple[int, set[int]]:
        worker = generator.choice(program.workers())
        return worker, {worker}

    return _kill(Row("kill_workers"), one_of, NOTICED_SECONDS, count, generator, folder)


def kill_nursery(count: int, generator: random.Random, folder: Path) -> Row:
    """The same with the process that forks them, and with it all workers; the next one imports PyTorch first."""

    def with_all(program: ObservedProgram) -> tuple[int, set[int]]:
        return program.nursery(), set(program.workers())

    return _kill(Row("kill_nursery"), with_all, GOES_ON_SECONDS, count, generator, folder)


def _kill(
    row: Row,
    choose: Callable[[ObservedProgram], tuple[int, set[int]]],
    within: float,
    count: int,
    generator: random.Random,
    folder: Path,
) -> Row:
    """choose: the next victim, and the workers that die by it. within: seconds in which there must be others."""
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
            ends.append(program.wait_for(lambda dead=workers: _both_there_without(program, dead), WATCHED_SECONDS))  # type: ignore[misc]
            row.survived += updates[-1] < GOES_ON_SECONDS and ends[-1] < within
            before = before or program.holds()  # after the first: what is started once and kept is no growth
        program.wait_for_work()
        program.wait_for(lambda: program.metric("workers/restarts") == killed)
        after, restarts = program.holds(), int(program.metric("workers/restarts"))
        exit_code = program.stop()
    grown = {name: after[name] - before[name] for name in before if after[name] > before[name]}
    if exit_code or grown or restarts != killed:
        row.survived = 0
    held = ", ".join(f"{number} {name}" for name, number in after.items())
    row.notes = (
        f"next update within {max(updates):.1f} s, both workers there {max(ends):.1f} s later, {restarts} restarts counted, "
        f"{held} after the first and after the last" + (f", grown {grown}" if grown else "") + f", exit code {exit_code}"
    )
    return row


def _both_there_without(program: ObservedProgram, dead: set[int]) -> bool:
    there = set(program.workers())
    return len(there) == 2 and not there & dead


def stop_workers(count: int, generator: random.Random, folder: Path) -> Row:
    """SIGSTOP to a random worker that works: it counts as hanging, is killed and replaced."""
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
    row.notes = f"ended after {min(ends):.1f} to {max(ends):.1f} s"
    return row


def environment_faults(count: int, generator: random.Random, folder: Path) -> Row:
    """An environment raises, hangs, spins, exits or crashes in a step, one worker's at a time."""
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
    """SIGKILL to the learner at a random moment: nothing stays behind, and the run goes on from its last checkpoint."""
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
        f"{orphans} orphans (all gone within {max(ends):.2f} s), {len(segments)} shared segments left, "
        f"resumed with every counter of the last checkpoint"
    )
    return row


def _goes_on(saved: Counters, newest: Counters, log: str) -> bool:
    """Whether a resumed run started where `saved` was, and all of its counters have grown since."""
    started = f"at step {saved.steps:,}\n" in log.rsplit("Going on from", 1)[-1]
    return started and all(getattr(newest, name) > value for name, value in asdict(saved).items())


def kill_in_checkpoint(count: int, generator: random.Random, folder: Path) -> Row:
    """SIGKILL to the learner while it writes a checkpoint: every checkpoint there is can be loaded, and the run goes on."""
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
    row.notes = f"{attempts} attempts to meet one half-written"
    return row


def _unfinished(checkpoints: Path, known: set[str]) -> bool:
    return any(not name.endswith(".pt") for name in set(os.listdir(checkpoints)) - known)


def _train_or_resume(attempt: int) -> tuple[str, ...]:
    return ("--op_mode=train_w_load", "--load=latest") if attempt else ("--op_mode=train", "--env=Catch-v0")


ROWS: dict[str, tuple[Callable[[int, random.Random, Path], Row], int]] = {
    "kill_workers": (kill_workers, 100),
    "kill_nursery": (kill_nursery, 10),
    "stop_workers": (stop_workers, 10),
    "environment_faults": (environment_faults, 2 * len(FAULTS)),
    "kill_learner": (kill_learner, 30),
    "kill_in_checkpoint": (kill_in_checkpoint, 30),
    "full_disk": (full_disk, 30),
    "read_only_disk": (read_only_disk, 10),
}
"""Name -> the row and how many faults it makes."""


def main() -> int:
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="which rows")
    parser.add_argument("--count", type=int, help="faults in each row, instead of the row's own number")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument("--json", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    results = []
    for name in arguments.rows:
        function, count = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            row = function(arguments.count or count, random.Random(arguments.seed), Path(folder))
        print(f"{row.name:20s} {row.survived:4d} of {row.faults:4d} survived; {row.notes}", flush=True)
        results.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n")
    return int(any(row.survived < row.faults for row in results))


if __name__ == "__main__":
    end_with(main)
