"""Counts the project's files and functions that a real run enters below one call: what a reader of that call would open.

    python -m benchmarks.opened
    python -m benchmarks.opened --list vtrace

Builds each agent as a run does, on a CPU with one thread, feeds it batches of random play, and profiles one update after the
first ones. Prints the number of files and functions for each, and with `--list` their names. Nested functions and
comprehensions count as part of the function around them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from learner import launch
from learner.settings.config import Config
from main import prepare
from tools.termination import REPOSITORY

COMMON = [
    "--op_mode=train",
    "--device=cpu",
    "--precision=float32",
    "--nopreflight",
    "--reproducible",
    "--seed=1",
    "--verbosity=0",
]
CATCH = ["--env=Catch-v0", "--network=mlp", "--unroll_length=10", "--batch_size=4", "--envs_per_worker=4"]
REACH = ["--env=Reach-v0", "--network=mlp", "--unroll_length=10", "--batch_size=4", "--envs_per_worker=4"]
CASES: dict[str, list[str]] = {
    "vtrace": CATCH,
    "ppo": [*CATCH, "--agent=ppo"],
    "sac": [*REACH, "--agent=sac", "--learning_starts=100"],
    "dqn": [*CATCH, "--agent=dqn", "--learning_starts=100"],
}
STEPS = 1200
"""Steps of each run: some updates of every agent."""

Opened = dict[str, set[str]]
"""File of the project, relative to its root -> names of the functions entered there."""


@contextmanager
def opened_below(owner: type, name: str, found: Opened) -> Iterator[None]:
    """Profile the last call of a method while the block runs, and put what it enters into `found`."""
    original: Callable[..., Any] = getattr(owner, name)

    def profiled(*arguments: Any, **options: Any) -> Any:
        found.clear()
        sys.setprofile(lambda frame, event, _: _enter(found, frame) if event == "call" else None)
        try:
            return original(*arguments, **options)
        finally:
            sys.setprofile(None)

    setattr(owner, name, profiled)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _enter(found: Opened, frame: FrameType) -> None:
    code = frame.f_code
    path = Path(code.co_filename)
    if not path.is_relative_to(REPOSITORY) or ".venv" in path.parts or path == Path(__file__):
        return
    function = code.co_qualname.split(".<locals>")[0]
    if not function.startswith("<"):
        found.setdefault(str(path.relative_to(REPOSITORY)), set()).add(function)


def opened_by_update(flags: list[str], results: Path) -> Opened:
    """Train shortly with these flags of main.py. Returns what the last update entered. Raises RuntimeError if the run fails."""
    found: Opened = {}
    job = prepare(["main.py", *COMMON, *flags, f"--environment_max_steps={STEPS}", f"--results_dir={results}"])
    with opened_below(_agent_of(job.config), UPDATE, found):
        if launch.run(job):
            raise RuntimeError("the run failed")
    return found


UPDATE = "learn"
"""The method of an agent that the learner's loop calls."""


def _agent_of(config: Config) -> type:
    from learner.building import agent_class

    return next(base for base in agent_class(config).__mro__ if UPDATE in vars(base))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="cases; all by default")
    parser.add_argument("--list", action="store_true", help="print the files with their functions")
    arguments = parser.parse_args()
    for name in arguments.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = opened_by_update(CASES[name], Path(folder))
        print(f"{name}: {len(found)} files, {sum(map(len, found.values()))} functions")
        if arguments.list:
            for path, functions in sorted(found.items()):
                print(f"  {path}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    main()
