"""Builders that several tests of workers share."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import FeatureNetwork
from agents.networks.settings import NetworkSettings
from learner.plan import make_plan
from replay.trajectory import Arrays
from tests.builders import network_of
from tests.support import small_config
from workers import WORKERS, Block, Workers, WorkerSetup, first_seeds

TRAJECTORIES = 6  # of each environment that `collect` waits for
POISONED_FRAME = 0xA5
STEPS = 7  # of a trajectory, less than an episode of Catch: 9 and the autoreset


def make_setup(kind: str, **settings: Any) -> WorkerSetup:
    given = {"worker_count": 2, "envs_per_worker": 4, "unroll_length": STEPS, "core": "lstm", "core_size": 8, **settings}
    config = small_config(worker_kind=kind, **given)
    seeds = first_seeds(np.random.SeedSequence(5), config.workers.worker_count)
    plan = make_plan(config)
    return WorkerSetup(config.env, plan.spec, plan.network, plan.contract, config.workers, seeds, poison=True)


def make_learned_and_setup(network: str, **settings: Any) -> tuple[ActorCritic, WorkerSetup]:
    """A network of the run, and workers that act with `network`, whose slots are poisoned."""
    config = small_config(**settings)
    plan = make_plan(config)
    seeds = first_seeds(np.random.SeedSequence(5), config.workers.worker_count)
    described = replace(plan.network, settings=NetworkSettings(network))
    setup = WorkerSetup(config.env, plan.spec, described, plan.contract, config.workers, seeds, poison=True)
    return network_of(config.network, plan.spec.observation_shape, plan.spec.action), setup


def poll_until(workers: Workers, count: int, seconds: float = 60.0) -> list[Block]:
    """The blocks that were filled, at least `count` of them unless `seconds` pass first."""
    blocks: list[Block] = []
    end = time.monotonic() + seconds
    while len(blocks) < count and time.monotonic() < end:
        blocks += workers.poll(0.5)
    return blocks


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition()` is true. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"wanted the condition to hold within {seconds} s"
        time.sleep(0.01)


@contextmanager
def running(setup: WorkerSetup, network: FeatureNetwork) -> Iterator[Workers]:
    workers = WORKERS[setup.config.worker_kind](setup, network)
    try:
        workers.weights.publish(network, 1)
        workers.start()
        yield workers
    finally:
        workers.stop()


def collect(workers: Workers) -> dict[int, list[Arrays]]:
    """Trajectories of each environment in their order."""
    found: dict[int, list[Arrays]] = defaultdict(list)
    end = time.monotonic() + 120
    environments = workers.setup.config.environments
    while len(found) < environments or min(map(len, found.values())) < TRAJECTORIES:
        assert time.monotonic() < end, "workers are silent"
        for block in workers.poll(0.05):
            for slot in range(block.first_slot, block.first_slot + block.slot_count):
                trajectory = {name: array[slot].copy() for name, array in workers.slots.items()}
                found[int(trajectory["environment_id"])].append(trajectory)
            workers.release(block)
    return found


def rows(workers: Workers, count: int) -> list[Arrays]:
    """The slots that serial workers fill in `count` turns, `[envs_per_worker, *shape]` each field."""
    found = []
    for _ in range(count):
        (block,) = workers.poll(0.0)
        slots = slice(block.first_slot, block.first_slot + block.slot_count)
        found.append({name: array[slots].copy() for name, array in workers.slots.items()})
        workers.release(block)
    return found
