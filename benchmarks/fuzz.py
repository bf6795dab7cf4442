"""Whether bad input ends in one clear line: random command lines, and checkpoints that are damaged, foreign or hostile.

    python -m benchmarks.fuzz                              # both rows, some minutes on two cores
    python -m benchmarks.fuzz --rows=flags --count=10000

Each case goes through all that main.py does before anything starts; a checkpoint that is taken must then train an update, or be
played in test mode. A case is bad where it raises anything but the one line, lasts a minute, or leaves a file though refused.
Prints a table; `--json=FILE` writes it too. Exits with 1 where a case was bad. Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from absl import flags

from benchmarks.fuzzed_checkpoints import base_checkpoints, fuzzed_checkpoint
from benchmarks.fuzzed_flags import fuzzed_flags
from benchmarks.termination import end_with
from learner import launch
from main import prepare, refusal

CASE_SECONDS = 60
MOST_MEMORY = 24 * 2**30  # bytes of address space: what would take more fails at once


@dataclass
class Row:
    """What a row found. slowest: seconds of CPU time. bad: what was wrong, and with which case."""

    name: str
    cases: int = 0
    refused: int = 0
    taken: int = 0
    slowest: float = 0.0
    bad: list[str] = field(default_factory=list)

    def try_case(self, case: str, action: Callable[[], object]) -> bool:
        """Run a case and count what becomes of it. Returns whether it was refused, in one line."""
        self.cases += 1
        started = time.process_time()
        try:
            with _time_limit(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                action()
            self.taken += 1
            return False
        except (flags.Error, ValueError) as error:
            if not refusal(error):
                self.complain(case, "it was refused without a word")
            self.refused += 1
            return True
        except Exception as error:  # whatever it is, it is what this program looks for
            self.complain(case, "".join(traceback.format_exception(error)[-3:]))
            return False
        finally:
            self.slowest = max(self.slowest, time.process_time() - started)

    def complain(self, case: str, what: str) -> None:
        self.bad.append(f"{what.strip()}\n  in the case {case[:400]!r}")


class TimeLimitError(Exception):
    """A case that may never end."""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeLimitError(f"wanted an end within {CASE_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(CASE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz_flags(count: int, generator: random.Random, folder: Path) -> Row:
    """Command lines, up to the point where something would start, and the measurement; nothing may be written by then."""
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
    """Checkpoints; what is taken trains one update or plays one episode, what is refused leaves no trace."""
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
                raise RuntimeError("wanted a run that ends well, got one that failed")

        before = len(list(results.glob("*")))
        refused = row.try_case(case.name, load_and_run)
        if refused and len(list(results.glob("*"))) > before:
            row.complain(case.name, "it was refused and left a run directory")
        if case.must_refuse and not refused:
            row.complain(case.name, "it was taken")
    return row


ROWS: dict[str, tuple[Callable[[int, random.Random, Path], Row], int]] = {
    "flags": (fuzz_flags, 2000),
    "checkpoints": (fuzz_checkpoints, 500),
}
"""Name -> the row and how many cases it has."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="which rows")
    parser.add_argument("--count", type=int, help="cases in each row, instead of the row's own number")
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    parser.add_argument("--json", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    rows = []
    for name in arguments.rows:
        function, count = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            row = function(arguments.count or count, random.Random(arguments.seed), Path(folder))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(
            f"{row.name:12s} {row.cases:6,} cases: {row.refused:,} refused in one line, {row.taken:,} taken, "
            f"{len(row.bad):,} bad; the slowest took {row.slowest:.1f} s, at most {memory:,.0f} MiB so far",
            flush=True,
        )
        for complaint in row.bad:
            print(f"BAD {complaint}")
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    end_with(main)
