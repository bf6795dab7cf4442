"""Measures what priorities cost: draws from and updates of a sum tree, as a prioritised replay of windows makes them.

python -m benchmarks.priorities --leaves=1000000 --batch=32
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from replay.priorities.priorities import Priorities, importance_weights

ROWS = 20  # of a trajectory
TURNS = 2000


class Costs(NamedTuple):
    """Microseconds of one batch, the median and the least of all turns."""

    draw: tuple[float, float]
    update: tuple[float, float]


def measure(leaves: int, batch: int, turns: int = TURNS) -> Costs:
    """The costs of priorities with this many leaves and draws.

    Args:
        leaves: rows that may be drawn, rounded down to whole trajectories.
        batch: rows of a draw.
        turns: draws and updates.
    """
    generator = np.random.default_rng(1)
    priorities = filled(leaves // ROWS, generator)
    times = np.empty((turns, 2))
    for turn in range(turns):
        errors = generator.random(batch)
        begun = perf_counter()
        tickets, relative = priorities.draw(batch, generator)
        importance_weights(relative, 0.4)
        drawn = perf_counter()
        priorities.update(tickets, errors)
        times[turn] = drawn - begun, perf_counter() - drawn
    medians, least = 1e6 * np.median(times, 0), 1e6 * times.min(0)
    return Costs((medians[0], least[0]), (medians[1], least[1]))


def filled(slots: int, generator: np.random.Generator) -> Priorities:
    """Priorities of full slots with random errors."""
    priorities, used = Priorities(slots, ROWS, alpha=0.6, epsilon=1e-6), np.ones(ROWS, bool)
    for slot in range(slots):
        priorities.add(slot, used)
        priorities.start(slot, generator.random(ROWS))
    return priorities


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leaves", type=int, default=1_000_000, help="rows that may be drawn")
    parser.add_argument("--batch", type=int, default=32, help="rows of a draw")
    given = parser.parse_args(arguments)
    costs = measure(given.leaves, given.batch)
    for name, (median, least) in costs._asdict().items():
        print(f"{name} of {given.batch} among {given.leaves:,} leaves: median {median:.0f}, least {least:.0f} microseconds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
