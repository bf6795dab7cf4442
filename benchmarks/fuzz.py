"""Tests whether bad input ends in one clear line: random command lines, damaged or hostile checkpoints, other damaged files.

    python -m benchmarks.fuzz                              # all rows, several minutes on two cores
    python -m benchmarks.fuzz --rows=flags --count=10000

Each case goes through everything that main.py does before a process starts. An accepted checkpoint must then train for
one update, or play in test mode. A case is bad if it raises anything but the one line, takes a minute of CPU time or ten
minutes, or is refused but leaves a file. The output is a table, which `--json=FILE` also writes. The exit code is 1 if any
case was bad. Linux only.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from absl import flags

from benchmarks.fuzzed_checkpoints import base_checkpoints, fuzzed_checkpoint
from benchmarks.fuzzed_files import base_files, fuzzed_file
from benchmarks.fuzzed_flags import fuzzed_flags
from benchmarks.output import write_json
from benchmarks.rows import read_command_line, run_rows
from learner import launch
from main import prepare, refusal
from tools.termination import end_with

CASE_SECONDS = 60  # CPU time: a busy machine makes no case bad
HANG_SECONDS = 600
MOST_MEMORY = 24 * 2**30  # bytes of address space; a larger allocation fails at once

MOST_OF_A_CASE = 2000  # characters that are shown


@dataclass
class Row:
    """The result of a row. slowest: CPU seconds of the slowest case. bad: each bad case and what is wrong with it.

    last_refusal: the line of the last case that was refused.
    """

    name: str
    cases: int = 0
    refused: int = 0
    taken: int = 0
    slowest: float = 0.0
    bad: list[str] = field(default_factory=list)
    last_refusal: str = ""

    def try_case(self, case: str, action: Callable[[], object]) -> bool:
        """Run a case and count its outcome. Returns whether it was refused."""
        self.cases += 1
        started = time.process_time()
        try:
            with _time_limit(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                action()
            self.taken += 1
            return False
        except (flags.Error, ValueError) as error:
            self.last_refusal = refusal(error)
            if not self.last_refusal:
                self.complain(case, "it was refused without a message")
            self.refused += 1
            return True
        except Exception as error:  # any other exception is what this program looks for
            self.complain(case, "".join(traceback.format_exception(error)[-3:]))
            return False
        finally:
            self.slowest = max(self.slowest, time.process_time() - started)

    def complain(self, case: str, what: str) -> None:
        """Count a case as bad."""
        self.bad.append(f"{what.strip()}\n  in the case {case[:MOST_OF_A_CASE]!r}")


class TimeLimitError(Exception):
    """A case did not end in time."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        limit = f"{HANG_SECONDS} seconds" if number == signal.SIGALRM else f"{CASE_SECONDS} seconds of CPU time"
        raise TimeLimitError(f"wanted an end within {limit}")

    limits = ((signal.SIGALRM, signal.ITIMER_REAL, HANG_SECONDS), (signal.SIGPROF, signal.ITIMER_PROF, CASE_SECONDS))
    before = [signal.signal(number, ring) for number, _, _ in limits]
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def fuzz_flags(count: int, generator: random.Random, folder: Path) -> Row:
    """Try command lines up to the start of processes, with the preflight measurement. Nothing may be written by then."""
    row = Row("flags")

    def check_and_measure(arguments: Sequence[str]) -> None:
        launch.measured(prepare(["main.py", *arguments]))

    with contextlib.chdir(folder):
        for _ in range(count):
            arguments = fuzzed_flags(generator)
            row.try_case(" ".join(arguments), partial(check_and_measure, arguments))
            if left := os.listdir(folder):
                row.complain(" ".join(arguments), f"it wrote {left}")
                break
    return row


def fuzz_checkpoints(count: int, generator: random.Random, folder: Path) -> Row:
    """Try checkpoints. An accepted one trains one update or plays one episode; a refused one leaves nothing behind."""
    row = Row("checkpoints")
    bases = base_checkpoints(folder)
    results = folder / "taken"
    for _ in range(count):
        path = folder / "case.pt"
        case = fuzzed_checkpoint(generator, bases, path)
        given = [f"--load={path}", f"--results_dir={results}", "--test_episode_count=1", *case.arguments]

        def load_and_run(given: list[str] = given) -> None:
            job = prepare(["main.py", "--verbosity=0", *given])
            if launch.run(job):
                raise RuntimeError("wanted exit code 0, got another one")

        before = len(list(results.glob("*")))
        refused = row.try_case(case.name, load_and_run)
        if refused and len(list(results.glob("*"))) > before:
            row.complain(case.name, "it was refused and left a run directory")
        if case.must_refuse and not refused:
            row.complain(case.name, "it was accepted")
    return row


def fuzz_files(count: int, generator: random.Random, folder: Path) -> Row:
    """Try damaged recordings, files of runs, suites and tables of curves. Reading them changes none."""
    row = Row("files")
    files = base_files(folder)
    for _ in range(count):
        case = fuzzed_file(generator, files)
        whole = case.path.read_bytes()
        case.path.write_bytes(case.content)
        refused = row.try_case(case.name, case.read)
        if refused and "wanted" not in row.last_refusal and case.path.name not in row.last_refusal:
            row.complain(case.name, f"it was refused by another line: {row.last_refusal}")
        if case.path.read_bytes() != case.content:
            row.complain(case.name, "it was written to")
        case.path.write_bytes(whole)
    return row


ROWS: dict[str, tuple[Callable[[int, random.Random, Path], Row], int]] = {
    "flags": (fuzz_flags, 2000),
    "checkpoints": (fuzz_checkpoints, 500),
    "files": (fuzz_files, 1000),
}
"""Name -> the row and its usual number of cases."""


def main() -> int:
    arguments = read_command_line(__doc__, ROWS, "cases")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    rows = []
    for row in run_rows(ROWS, arguments):
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(
            f"{row.name:12s} {row.cases:6,} cases: {row.refused:,} refused in one line, {row.taken:,} accepted, "
            f"{len(row.bad):,} bad; slowest case {row.slowest:.1f} s of CPU time, peak memory so far {memory:,.0f} MiB",
            flush=True,
        )
        for complaint in row.bad:
            print(f"BAD {complaint}")
        rows.append(row)
    write_json(arguments.json, [asdict(row) for row in rows])
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    end_with(main)
