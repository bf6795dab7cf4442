"""Counts the project's files and functions that a real run enters below one call: what a reader of that call would open.

    python -m benchmarks.opened
    python -m benchmarks.opened --list vtrace

Trains each agent in one process, on a CPU with one thread, and profiles the last call of each kind:

- update: `Agent.learn`.
- action: `Rollout._step`, one step of a worker: its actions are chosen and written down.
- checkpoint: `_save` of the training loop. A reproducible run also saves its replays, workers and environments.
- evaluation: `EvaluationLoop.evaluate`, in this process instead of one of its own, with the picture of an episode.

The environment is left out, because each environment has other files. Nested functions and comprehensions count as
part of the function around them. Prints the number of files and functions of each, and with `--list` their names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from agents import Agent
from agents.networks.base import make_network
from learner import launch, train
from learner.evaluation.evaluator import Evaluator
from learner.evaluation.evaluator_process import EvaluationLoop
from learner.plan import Plan
from main import prepare
from tools.termination import REPOSITORY
from workers.rollout import Rollout
from wrappers.journal import JournaledEnv
from wrappers.toys.base import Toy

COMMON = [
    "--op_mode=train",
    "--device=cpu",
    "--precision=float32",
    "--nopreflight",
    "--seed=1",
    "--verbosity=0",
]
CATCH = ["--env=Catch-v0", "--network=mlp", "--unroll_length=10", "--batch_size=4", "--envs_per_worker=4"]
REACH = ["--env=Reach-v0", "--network=mlp", "--unroll_length=10", "--batch_size=4", "--envs_per_worker=4"]
CASES: dict[str, list[str]] = {
    "vtrace": [*CATCH, "--reproducible"],
    "ppo": [*CATCH, "--agent=ppo", "--reproducible"],
    "sac": [*REACH, "--agent=sac", "--learning_starts=100", "--reproducible"],
    "dqn": [*CATCH, "--agent=dqn", "--learning_starts=100", "--reproducible"],
    "no replay saved": [*CATCH, "--worker_kind=serial", "--prepared_batches=0"],
}
STEPS = 1200
"""Steps of each run: some updates of every agent."""

Opened = dict[str, set[str]]
"""File of the project, relative to its root -> names of the functions entered there."""


@contextmanager
def opened_below(owner: Any, name: str, found: Opened) -> Iterator[None]:
    """Profile the last call of a function while the block runs, and put what it enters into `found`.

    owner: the class or the module of the function.
    """
    original: Callable[..., Any] = getattr(owner, name)

    def profiled(*arguments: Any, **options: Any) -> Any:
        found.clear()
        sys.setprofile(lambda frame, event, _: _enter(found, frame) if event == "call" else None)
        try:
            return original(*arguments, **options)
        finally:
            sys.setprofile(None)

    with patch.object(owner, name, profiled):
        yield


@contextmanager
def left_out(owner: Any, name: str) -> Iterator[None]:
    """Profile no calls of a class's method, nor what they enter, while the block runs."""
    original: Callable[..., Any] = getattr(owner, name)

    def unprofiled(*arguments: Any, **options: Any) -> Any:
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            return original(*arguments, **options)
        finally:
            sys.setprofile(profile)

    with patch.object(owner, name, unprofiled):
        yield


def _enter(found: Opened, frame: FrameType) -> None:
    code = frame.f_code
    path = Path(code.co_filename)
    if not path.is_relative_to(REPOSITORY) or ".venv" in path.parts or path == Path(__file__):
        return
    function = code.co_qualname.split(".<locals>")[0]
    if not function.startswith("<"):
        found.setdefault(str(path.relative_to(REPOSITORY)), set()).add(function)


def opened_by_run(flags: list[str], results: Path) -> dict[str, Opened]:
    """Train shortly with these flags of main.py, and evaluate. Returns what the last call of each kind entered.

    Raises RuntimeError if the run fails.
    """
    kinds: dict[str, tuple[Any, str]] = {
        "update": (Agent, "learn"),
        "action": (Rollout, "_step"),
        "checkpoint": (train, "_save"),
        "evaluation": (EvaluationLoop, "evaluate"),
    }
    found: dict[str, Opened] = {kind: {} for kind in kinds}
    job = prepare(["main.py", *COMMON, *flags, f"--environment_max_steps={STEPS}", f"--results_dir={results}"])
    with ExitStack() as watched:
        for kind, (owner, name) in kinds.items():
            watched.enter_context(opened_below(owner, name, found[kind]))
        for owner, name in ((JournaledEnv, "step"), (Toy, "step"), (Toy, "reset"), (Toy, "render")):
            watched.enter_context(left_out(owner, name))
        if launch.run(job):
            raise RuntimeError("the run failed")
        _evaluate(job.plan, results)
    return found


def _evaluate(plan: Plan, results: Path) -> None:
    """Evaluate a new network as the process of evaluations does."""
    network = make_network(plan.network)
    evaluator = Evaluator(plan, network, results / "episode.gif")
    evaluator._weights.publish(network, 0)
    EvaluationLoop(evaluator._setup, evaluator._shared).evaluate(0, stop=lambda: False)
    evaluator.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="cases; all by default")
    parser.add_argument("--list", action="store_true", help="print the files with their functions")
    arguments = parser.parse_args()
    for name in arguments.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            opened = opened_by_run(CASES[name], Path(folder))
        for kind, found in opened.items():
            print(f"{name}, {kind}: {len(found)} files, {sum(map(len, found.values()))} functions")
            if arguments.list:
                for path, functions in sorted(found.items()):
                    print(f"  {path}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    main()
