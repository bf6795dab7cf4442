"""Tests whether every combination of environment, agent, network and replay works or is refused in one line.

    python -m benchmarks.fuzz_environments                    # 40 random combinations, several minutes on two cores
    python -m benchmarks.fuzz_environments --count=200 --seed=2

Each case trains for 200 steps, resumes for 200 more, plays one episode in test mode, and one in eight is exported. Then another
agent learns from a recording of that episode. The learner runs in this process, on the GPU if there is one.

A case is bad if it raises anything but one line of refusal, if it fails, takes a minute of CPU time or ten minutes, or is
refused only after it was trained. The exit code is 1 if any case was bad. Environments whose package is missing are refused,
which is no fault.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.fuzz import Row
from benchmarks.fuzzed_environments import RANDOM_SPACES, STEPS, fuzzed_case, fuzzed_learner
from benchmarks.output import write_json
from benchmarks.rows import read_command_line, run_rows
from learner import launch
from learner.metrics import summary
from main import prepare
from tools.termination import end_with
from wrappers import facts
from wrappers.probe import answer

_ask_process = facts._ask

EXPORTED = 8
"""One case of so many is exported, which takes seconds."""
MOST_PRINTED = 2000  # characters of a failed case's output that are shown


def _ask_here(request: str, env_id: str, wanted: str) -> dict[str, Any]:
    """The answer of `wrappers.facts._ask` without a process, which takes longer than a case. Raises ValueError."""
    if RANDOM_SPACES not in request:
        return _ask_process(request, env_id, wanted)
    reply = json.loads(json.dumps(answer(request)))
    if "error" in reply:
        raise ValueError(reply["error"])
    return dict(reply)


@contextlib.contextmanager
def _quickly(index: int) -> Iterator[None]:
    """Leave out what takes most of a case's time: processes that probe spaces, and most pictures of learning curves."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(facts, "_ask", _ask_here))
        if index % EXPORTED != EXPORTED - 1:
            patches.enter_context(mock.patch.object(summary, "draw_learning_curve"))
        yield


def fuzz_environments(count: int, generator: random.Random, folder: Path) -> Row:
    """Try combinations. One that is accepted must train, resume and play. Bad cases are printed at once."""
    row = Row("environments")
    for index in range(count):
        given = fuzzed_case(generator)
        known = len(row.bad)
        with _quickly(index):
            results, recording = folder / str(index), folder / str(index) / "recording"
            if _try_run(row, given, results, f"--record_to={recording}"):
                if index % EXPORTED == EXPORTED - 1:  # a refusal is no fault: not every policy can be exported
                    row.try_case(f"export of {' '.join(given)}", partial(run, ("export", "--load=latest"), results))
                # A refusal is no fault here either: many agents cannot learn from another's play.
                _try_run(row, fuzzed_learner(given, recording, generator), results / "learner")
        for complaint in row.bad[known:]:
            print(f"BAD {complaint}", flush=True)
        shutil.rmtree(folder / str(index), ignore_errors=True)
    return row


def _try_run(row: Row, given: list[str], results: Path, *tested: str) -> bool:
    """Train, resume and play one episode. tested: further flags of test mode. Returns whether all was done without a fault."""
    case, known = " ".join(given), len(row.bad)
    if row.try_case(case, partial(run, ("train", *given), results)) or len(row.bad) > known:
        return False
    for mode, extra in (
        ("train_w_load", (f"--environment_max_steps={2 * STEPS}",)),
        ("test", ("--test_episode_count=1", "--test_environments=1", *tested)),
    ):
        if row.try_case(f"{mode} of {case}", partial(run, (mode, "--load=latest", *extra), results)):
            row.complain(f"{mode} of {case}", f"it was refused after it was trained: {row.last_refusal}")
    return len(row.bad) == known


def run(given: Sequence[str], results: Path) -> None:
    """Do what the flags say, in this process. Raises ValueError with one line, or RuntimeError for a failure."""
    mode, *flags = given
    job = prepare(["main.py", f"--op_mode={mode}", *flags, f"--results_dir={results}", "--verbosity=0", "--nopreflight"])
    try:
        code = launch.run(job)
    except ValueError as error:  # only `prepare` may refuse: main.py would show a traceback
        raise RuntimeError(f"wanted no exception after the checks, got {error}") from error
    if code:
        printed = sys.stdout.getvalue() if isinstance(sys.stdout, io.StringIO) else ""
        raise RuntimeError(f"wanted exit code 0, got {code} after {printed[-MOST_PRINTED:]!r}")


ROWS = {"environments": (fuzz_environments, 40)}


def main() -> int:
    arguments = read_command_line(__doc__, ROWS, "cases")
    rows = list(run_rows(ROWS, arguments))
    for row in rows:
        print(f"{row.cases:,} steps of cases: {row.refused:,} refused in one line, {row.taken:,} done, {len(row.bad):,} bad")
    write_json(arguments.json, [asdict(row) for row in rows])
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    end_with(main)
