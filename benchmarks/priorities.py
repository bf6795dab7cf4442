"""Measures what priorities cost: draws from and updates of a sum tree, as a prioritised replay of windows makes them.

    python -m benchmarks.priorities --leaves=1000000 --batch=32

The last line compares them with the gradient work of an update of DQN on Atari with the nature network: draw, importance
weights and update of the priorities, against the update of a batch of the same size. Both are CPU time on one thread, and they
take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from benchmarks.off_policy import cpu_seconds
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.machine.measuring import learning, prepare_to_measure
from learner.plan import make_plan
from learner.settings.config import Config, make_config
from learner.settings.schema import default_settings
from replay.priorities.priorities import Priorities, importance_weights

ROWS = 20  # of a trajectory
TURNS = 2000
WINDOWS = 7
ENV = "PongNoFrameskip-v4"


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


def config_of(batch: int) -> Config:
    """A run of DQN on Atari with the nature network in float32 that draws one batch at a time."""
    own = {"agent": "dqn", "env": ENV, "network": "nature", "worker_kind": "serial", "precision": "float32"}
    settings = {**default_settings("dqn"), **own, "batch_size": batch, "batches_at_once": 1, "learner_threads": 1}
    settled, _ = fit_to_machine(settings, Machine(cores=1, memory_bytes=8 * 10**9, gpu=None))
    return make_config(settled)


def compare(config: Config, leaves: int, seconds: float) -> dict[str, float]:
    """Median CPU milliseconds of the priorities and of the update of a batch, and the median ratio within a window.

    Args:
        config: of the run whose update is measured.
        leaves: rows that may be drawn, rounded down to whole trajectories.
        seconds: CPU time of each part of a window.
    """
    batch, generator = config.training.batch_size, np.random.default_rng(1)
    priorities, errors = filled(leaves // ROWS, generator), generator.random(batch)
    prepare_to_measure(config)
    update = learning(make_plan(config), batch)

    def prioritise() -> None:
        tickets, relative = priorities.draw(batch, generator)
        importance_weights(relative, 0.4)
        priorities.update(tickets, errors)

    windows = [(cpu_seconds(prioritise, seconds), cpu_seconds(update.call, seconds)) for _ in range(WINDOWS + 1)]
    windows = windows[1:]  # the first window warms up
    own, of_update = (1e3 * statistics.median(times) for times in zip(*windows, strict=True))
    ratio = statistics.median(one / other for one, other in windows)
    return {"priorities_ms": own, "update_ms": of_update, "priorities_per_update": ratio}


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
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time of each part of a window of the comparison")
    given = parser.parse_args(arguments)
    costs = measure(given.leaves, given.batch)
    for name, (median, least) in costs._asdict().items():
        print(f"{name} of {given.batch} among {given.leaves:,} leaves: median {median:.0f}, least {least:.0f} microseconds")
    found = compare(config_of(given.batch), given.leaves, given.seconds)
    print(
        f"priorities of a batch take {found['priorities_ms']:.3f} ms and its update {found['update_ms']:.2f} ms, "
        f"a ratio of {found['priorities_per_update']:.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
