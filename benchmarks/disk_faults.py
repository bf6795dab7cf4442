"""Faults of the disk at random moments of a run, and at its end: the disk is full, or it cannot be written to."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.fault_row import Row
from benchmarks.observed_program import ObservedProgram, newest_update
from learner.runs.checkpoint import load_checkpoint

GOES_ON_SECONDS = 20.0  # within which a checkpoint must follow once there is room again
NO_ROOM = 0
NO_ROOM_FOR_CHECKPOINTS = 20_000  # bytes per file: metrics of these small runs stay smaller for minutes, checkpoints are larger
SAVING = "--checkpoint_period=20"


def full_disk(count: int, generator: random.Random, folder: Path) -> Row:
    """Limit the size of files, which fails as a full disk does: for checkpoints only, or for all files."""

    @contextlib.contextmanager
    def full(program: ObservedProgram) -> Iterator[None]:
        limit = generator.choice((NO_ROOM, NO_ROOM_FOR_CHECKPOINTS))
        resource.prlimit(program.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            if program.process.poll() is None:
                resource.prlimit(program.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return _disturb(Row("full_disk"), count, generator, folder, full)


def read_only_disk(count: int, generator: random.Random, folder: Path) -> Row:
    """Make the folder of checkpoints read-only: by a mount if this process is root's, otherwise by the folder's mode."""

    @contextlib.contextmanager
    def read_only(program: ObservedProgram) -> Iterator[None]:
        path = str(program.run.checkpoints)
        if os.geteuid():
            os.chmod(path, 0o500)
        else:
            subprocess.run(["mount", "--bind", path, path], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        try:
            yield
        finally:
            if os.geteuid():
                os.chmod(path, 0o700)
            else:
                subprocess.run(["umount", "--lazy", path], check=True)

    return _disturb(Row("read_only_disk"), count, generator, folder, read_only)


def _disturb(
    row: Row,
    count: int,
    generator: random.Random,
    folder: Path,
    fault: Callable[[ObservedProgram], contextlib.AbstractContextManager[None]],
) -> Row:
    """Make `count` faults of some seconds each. The last one lasts over the end of the run, which is then resumed."""
    goes_on = []
    with ObservedProgram(folder, "--env=Catch-v0", SAVING) as program:
        program.wait_for_checkpoint(after=0)
        for _ in range(count - 1):
            time.sleep(generator.uniform(0.0, 1.0))
            with fault(program):
                time.sleep(generator.uniform(0.5, 3.0))
                before = _good(program)
            row.faults += 1
            goes_on.append(program.wait_for(lambda before=before: newest_update(folder) > before, GOES_ON_SECONDS))  # type: ignore[misc]
            row.survived += bool(before) and goes_on[-1] < GOES_ON_SECONDS and _good(program) > before
        row.faults += 1
        with fault(program):
            time.sleep(0.5)
            exit_code = program.stop()
            last = _good(program)
    with ObservedProgram(folder, "--op_mode=train_w_load", "--load=latest", SAVING) as program:
        program.wait_for_checkpoint(after=last)
        left = [path.name for path in program.run.checkpoints.iterdir() if path.suffix != ".pt"]
        said = program.run.log.read_text().count("was not saved")
    row.survived += bool(exit_code == 1 and last and not left)
    row.notes = (
        f"saved again within {max(goes_on, default=0.0):.1f} s, exit code {exit_code} if the last save fails, "
        f"{said} failed saves in the log, resumed" + (f", files left behind: {left}" if left else "")
    )
    return row


def _good(program: ObservedProgram) -> int:
    """The update of the newest checkpoint, 0 if it cannot be loaded."""
    try:
        return load_checkpoint(program.run.checkpoint_paths()[-1]).counters.updates
    except ValueError:
        return 0
