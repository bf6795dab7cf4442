"""Compares the speed of Ray's actors with that of worker processes, on this machine and with the same settings.

    python -m benchmarks.ray_workers --rounds=3 --window=30 -- --env=PongNoFrameskip-v4

The program runs in turns with `--worker_kind=cpu` and `--worker_kind=ray`, because the speed of a shared machine varies. Each
turn starts it, waits until it is in steady state, and reads frames/s from its metrics over a window. The result is the ratio of
the medians. `--ray_address` after `--` joins a cluster; by default each turn starts one on this machine.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from typing import Any

from benchmarks.jobs import job_of
from benchmarks.measured_program import MeasuredProgram
from benchmarks.output import show_windows
from tools.termination import end_with, training_command

KINDS = ("cpu", "ray")
WARM_UP_SECONDS = 15.0  # after the first row of metrics
SAME = ("worker_count", "envs_per_worker", "batch_size", "learner_threads", "prepared_batches", "precision")
"""Settings that are fitted to the machine. Both kinds get the values that worker processes would have."""


def commands(arguments: list[str]) -> dict[str, list[str]]:
    """The command of each kind, with equal settings. arguments: flags of main.py."""
    job = job_of([*arguments, "--worker_kind=cpu", "--nopreflight"])
    fixed = [f"--{name}={job.settled[name]}" for name in SAME]
    return {kind: training_command(*arguments, *fixed, "--nopreflight", f"--worker_kind={kind}") for kind in KINDS}


def measure(arguments: list[str], rounds: int, window: float) -> dict[str, Any]:
    """The frames per second of both kinds in every round, and their ratio.

    Args:
        arguments: flags of main.py.
        rounds: measurements of each kind.
        window: seconds of each measurement.
    """
    frames_per_step = job_of(arguments).plan.spec.frames_per_step
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind, command in commands(arguments).items():
            print(f"Round {number + 1} of {rounds}: {shlex.join(command[1:])}", file=sys.stderr, flush=True)
            with MeasuredProgram(command) as program:
                program.warm_up(WARM_UP_SECONDS)
                found[kind].append(frames_per_step * program.steps_per_second(window, 0.0))
    return compare(found)


def compare(found: dict[str, list[float]]) -> dict[str, Any]:
    """The result. found: frames per second of each kind in every round."""
    medians = {kind: statistics.median(speeds) for kind, speeds in found.items()}
    rounds = {f"{kind}_rounds": [round(speed) for speed in speeds] for kind, speeds in found.items()}
    speeds = {f"{kind}_frames_per_second": median for kind, median in medians.items()}
    return {**rounds, **speeds, "ratio": medians["ray"] / medians["cpu"]}


def main() -> None:
    show_windows(__doc__, measure, "rounds", 3, 30.0)


if __name__ == "__main__":
    end_with(main)
