"""Compares the speed of the working tree with that of another commit, in turns, because a machine's speed drifts.

    python -m benchmarks.against main
    python -m benchmarks.against HEAD~3 --turns=9 -- --network=impala_shallow --batch_size=32

In each turn both trees run their own `python -m benchmarks.throughput`, the old one first in the first turn, the new one
first in the second, and so on. Each ratio compares two measurements of the same turn. Above 1 the working tree is better:
ratios of costs (c_env, c_act, c_learn, in microseconds a step) are old / new, those of frames/s are new / old. Prints the
median ratio and all single ones. Exits with 1 if a median is below `--bar`.

Default settings are Pong's, and fixed flags instead of what the program would fit to the machine. Flags after `--` come
behind the fixed ones and override them; a preset does not. Both commits must know all flags.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.jobs import job_of, refuse
from benchmarks.other_commit import commit_hash, finish, started, unpacked
from benchmarks.throughput import seconds_needed
from learner.machine.detect import available_cores
from learner.metrics.progress import format_duration
from tools.termination import REPOSITORY, end_with, unwind_when_terminated

Figures = dict[str, float]
Turn = tuple[Figures, Figures]  # of COMMIT and of the working tree

COSTS = {"c_env": "c_env_microseconds", "c_act": "c_act_microseconds", "c_learn": "c_learn_microseconds"}
SPEED = {"frames/s": "achieved_frames_per_second"}
KEYS = {**COSTS, **SPEED}
"""Figure -> its key in the result of benchmarks.throughput."""

FIXED = {
    "env": "PongNoFrameskip-v4",
    "device": "cpu",
    "precision": "float32",
    "learner_threads": 1,
    "worker_kind": "cpu",
    "worker_count": available_cores(),
    "envs_per_worker": 16,
    "prepared_batches": 0,
    "batch_size": 8,
    "preflight": False,
}


def measure(tree: Path, settings: Sequence[str], window: float) -> Figures:
    """Return the figures of one run of a tree's throughput benchmark. Raises RuntimeError if it fails.

    window: seconds in which frames are counted.
    """
    with tempfile.TemporaryDirectory(prefix="springbok_speed_") as folder:
        result, output = Path(folder, "result.json"), Path(folder, "output.txt")
        options = ["--windows=1", f"--window={window}", f"--json={result}"]
        with started(tree, ["-m", "benchmarks.throughput", *options, "--", *settings], output) as process:
            try:
                finish(process, output)
            except RuntimeError as error:
                name = "the working tree" if tree == REPOSITORY else "COMMIT"
                raise RuntimeError(f"benchmarks.throughput of {name} failed: {error}") from None
        found = json.loads(result.read_text())
    return {name: float(found[key]) for name, key in KEYS.items()}


def take_turn(trees: Sequence[Path], number: int, settings: Sequence[str], window: float) -> Turn:
    """Return the figures of COMMIT's tree and of the working tree, measured in this order if `number` is even."""
    if number % 2 == 0:
        old = measure(trees[0], settings, window)
        return old, measure(trees[1], settings, window)
    new = measure(trees[1], settings, window)
    return measure(trees[0], settings, window), new


def ratios(turn: Turn) -> Figures:
    """Return for each figure how many times better the working tree is."""
    old, new = turn
    return {name: old[name] / new[name] if name in COSTS else new[name] / old[name] for name in KEYS}


def table(turns: Sequence[Turn]) -> list[str]:
    """Return a heading, and a line for each figure: medians of both trees, the median ratio, and all ratios."""
    lines = [f"{'figure':10s} {'old':>10s} {'new':>10s} {'ratio':>8s}   single ratios"]
    middle = medians(turns)
    for name in KEYS:
        old, new = (statistics.median(turn[side][name] for turn in turns) for side in (0, 1))
        single = " ".join(f"{ratios(turn)[name]:.3f}" for turn in turns)
        lines.append(f"{name:10s} {old:10,.1f} {new:10,.1f} {middle[name]:8.3f}   {single}")
    return lines


def medians(turns: Sequence[Turn]) -> Figures:
    """Return the median ratio of each figure."""
    return {name: statistics.median(ratios(turn)[name] for turn in turns) for name in KEYS}


def below(middle: Mapping[str, float], bar: float) -> list[str]:
    """Return a line for each median ratio below the bar."""
    return [
        f"{name}: wanted a median ratio of {bar:g} or more, got {ratio:.3f}" for name, ratio in middle.items() if ratio < bar
    ]


def compare(commit: str, settings: Sequence[str], turns: int, window: float) -> list[Turn]:
    """Return the figures of all turns, and print the ratios of each. Raises RuntimeError if a tree cannot be measured.

    commit: as `commit_hash` returns it.
    """
    found: list[Turn] = []
    with unpacked(commit) as tree:
        for number in range(turns):
            found.append(take_turn((tree, REPOSITORY), number, settings, window))
            figures = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios(found[-1]).items())
            print(f"Turn {number + 1} of {turns}: {figures}", file=sys.stderr, flush=True)
    return found


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what comes before `--` and what comes after it; argparse confuses the two once an option follows COMMIT."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


def main() -> int:
    unwind_when_terminated()
    own, flags = split_arguments(sys.argv[1:])
    usage = "%(prog)s [options] COMMIT [-- FLAGS OF main.py]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", metavar="COMMIT", help="commit to compare with, by any name that git accepts")
    parser.add_argument("--turns", type=int, default=5, help="how often both trees are measured")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of each in which frames are counted")
    parser.add_argument("--bar", type=float, default=0.98, help="median ratio below which the exit code is 1")
    arguments = parser.parse_args(own)
    if arguments.turns < 1:
        parser.error(f"--turns: wanted 1 or more, got {arguments.turns}")
    settings = [*(f"--{name}={value}" for name, value in FIXED.items()), *flags]
    job_of(settings)  # refuses bad flags before anything is measured
    try:
        commit = commit_hash(arguments.commit)
    except ValueError as error:
        refuse(error)
    seconds = 2 * arguments.turns * seconds_needed(1, arguments.window)
    print(
        f"Measuring {arguments.commit} and the working tree {arguments.turns} times each, with {shlex.join(settings)}: "
        f"about {format_duration(seconds)} on idle cores, and {2 * arguments.turns} starts",
        file=sys.stderr,
        flush=True,
    )
    try:
        turns = compare(commit, settings, arguments.turns, arguments.window)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(turns)))
    missed = below(medians(turns), arguments.bar)
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    end_with(main)
