"""One policy for all workers: what it writes is what each worker's own would have written, and no worker can stall it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from agents.networks.actor_critic import ActorCritic
from learner.plan import make_plan
from tests.builders import fresh_batch
from tests.support import runs, small_config
from workers import WORKERS, WorkerError, Workers, WorkerSetup, first_seeds
from workers.central.device_policy import DevicePolicy
from workers.central.inference import Line
from workers.central.workers import CentralWorkers

STACK = 3
ELITE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "elite", "capacity": 9, "sample_ratio": 0.5}]'
Trajectory = dict[str, np.ndarray]


def make_workers(kind: str, **settings: Any) -> tuple[Any, ActorCritic]:
    """Workers, and a network of which every action is as good as certain, published as version 1."""
    config = small_config(worker_kind=kind, frames_stacked=STACK, replay_parameters=ELITE, **{"worker_count": 1, **settings})
    plan = make_plan(config)
    seeds = first_seeds(np.random.SeedSequence(5), config.workers.worker_count)
    setup = WorkerSetup(config.env, plan.spec, plan.network, plan.contract, config.workers, seeds, poison=True)
    network = certain_network(setup, 1)
    workers = WORKERS[kind](setup, network)
    workers.weights.publish(network, 1)
    return workers, network


def certain_network(setup: WorkerSetup, seed: int) -> ActorCritic:
    torch.manual_seed(seed)
    network = setup.make_network()
    network.policy_head.weight.data *= 1e6
    return network


class Collector:
    """Takes trajectories from workers, by environment and in their order, and gives their blocks back."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.found: dict[int, list[Trajectory]] = defaultdict(list)

    def until(self, enough: Callable[[], object], *, release: bool = True) -> None:
        end = time.monotonic() + 120
        while not enough():
            assert time.monotonic() < end, "workers are silent"
            for block in self.workers.poll(0.05):
                for slot in range(block.first_slot, block.first_slot + block.slot_count):
                    trajectory = {name: array[slot].copy() for name, array in self.workers.slots.items()}
                    self.found[int(trajectory["environment_id"])].append(trajectory)
                if release:
                    self.workers.release(block)

    def until_more(self, worker: int, count: int) -> None:
        """So many trajectories more of this worker."""
        wanted = self._count(worker) + count
        self.until(lambda: self._count(worker) >= wanted)

    def _count(self, worker: int) -> int:
        envs = self.workers.setup.config.envs_per_worker
        return sum(len(found) for environment, found in self.found.items() if environment // envs == worker)


def acts_with(workers: Workers, version: int) -> Callable[[], bool]:
    return lambda: bool((workers.slots["policy_version"] == version).any())


def first_trajectories(kind: str, count: int) -> list[list[Trajectory]]:
    """The first ones of each of four environments."""
    workers, _ = make_workers(kind)
    collector = Collector(workers)
    found = collector.found
    try:
        workers.start()
        collector.until(lambda: len(found) == 4 and min(map(len, found.values())) >= count)
    finally:
        workers.stop()
    return [found[environment][:count] for environment in range(4)]


def test_the_same_trajectories_as_with_a_policy_in_each_worker() -> None:
    """Three trajectories of ten steps each, in which several games of nine steps end."""
    own, central = first_trajectories("cpu", 3), first_trajectories("central", 3)
    assert any(trajectory["reset"].any() for trajectory in own[0])
    for mine, theirs in zip(chain(*own), chain(*central), strict=True):
        for name, wanted in mine.items():
            if name.startswith("behaviour_"):
                np.testing.assert_allclose(theirs[name], wanted, rtol=1e-4, atol=1e-4, err_msg=name)
            else:
                np.testing.assert_array_equal(theirs[name], wanted, err_msg=name)


def both(collector: Collector) -> list[Trajectory]:
    """Trajectories that two versions acted in."""
    return [one for found in collector.found.values() for one in found if np.unique(one["policy_version"]).size == 2]


def test_weights_change_within_a_trajectory_and_every_row_says_which_acted() -> None:
    workers, network = make_workers("central", unroll_length=400)
    other = certain_network(workers.setup, 2)
    networks = {1: network, 2: other}
    collector = Collector(workers)
    try:
        workers.start()
        collector.until(acts_with(workers, 1))
        workers.weights.publish(other, 2)
        collector.until(lambda: both(collector))
    finally:
        workers.stop()
    trajectory = both(collector)[0]
    assert (np.diff(trajectory["policy_version"]) >= 0).all()
    columns = {name: array[None] for name, array in trajectory.items()}
    batch = fresh_batch(columns, workers.setup.contract)
    for version, acting in networks.items():
        rows = trajectory["policy_version"] == version
        with torch.no_grad():
            features = acting.features(batch.observations[:-1, 0][torch.from_numpy(rows)])
            output = acting.heads(features)
        np.testing.assert_allclose(trajectory["behaviour_policy"][rows], output.policy, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(trajectory["behaviour_values"][rows], output.values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trajectory["behaviour_features"][rows], features, rtol=1e-4, atol=1e-5)


def test_a_stopped_or_killed_worker_keeps_nobody_waiting_and_is_replaced() -> None:
    workers, _ = make_workers("central", worker_count=2, worker_timeout=0.5, max_worker_restarts=3)
    collector = Collector(workers)
    try:
        workers.start()
        collector.until_more(0, 8)
        collector.until_more(1, 8)
        for restarts, fault in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
            victim = workers.pids[0]
            os.kill(victim, fault)
            collector.until_more(1, 40)
            collector.until(lambda count=restarts, victim=victim: workers.restarts == count and victim not in workers.pids)
            collector.until_more(0, 8)
        assert len(workers._server._lines) == 2
    finally:
        workers.stop()


def test_the_dead_are_not_heard_and_what_they_asked_for_is_dropped() -> None:
    workers, _ = make_workers("central")
    server = workers._server
    first, first_asks = line()
    second, second_asks = line()
    try:
        server._admit(first)
        os.write(first_asks.fileno(), bytes([0, 1]))
        server._admit(second)  # in the first one's place, which had asked and died
        os.write(second_asks.fileno(), bytes([1]))
        assert server._hear(0.0) == [(second, 1)]
        second_asks.close()
        assert server._hear(1.0) == []
        assert server._lines == []
    finally:
        first_asks.close()
        workers.stop()


def line() -> tuple[Line, Connection]:
    """The line of worker 0, and its end of the asking."""
    asks, asks_of_worker = multiprocessing.Pipe(duplex=False)
    _, answers = multiprocessing.Pipe(duplex=False)
    return Line(0, asks, answers), asks_of_worker


def failure_of_the_policy(workers: Workers) -> list[str]:
    """The lines of the error with which collecting ends."""
    try:
        workers.start()
        with pytest.raises(WorkerError) as caught:
            Collector(workers).until(lambda: False)
    finally:
        workers.stop()
    return str(caught.value).splitlines()


def test_a_policy_that_diverged_ends_the_run_with_one_line() -> None:
    workers, network = make_workers("central")
    network.value_head.weight.data.fill_(np.nan)
    workers.weights.publish(network, 7)
    wanted = "the policy of update 7: wanted finite outputs, got nan"
    assert failure_of_the_policy(workers) == [f"The policy that acts for all workers failed: {wanted}"]


def test_a_policy_that_fails_otherwise_ends_the_run_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("weights")

    workers, network = make_workers("central")
    monkeypatch.setattr(DevicePolicy, "_answer", fail)
    workers.weights.publish(network, 7)
    lines = failure_of_the_policy(workers)
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "The policy that acts for all workers failed: 'weights'"


def start_and_stop() -> None:
    workers, _ = make_workers("central")
    workers.start()
    Collector(workers).until(acts_with(workers, 1), release=False)
    pids = workers.pids
    workers.stop()
    workers.stop()
    assert not any(map(runs, pids))


def test_stop_leaves_no_thread_process_or_descriptor() -> None:
    start_and_stop()  # opens what stays open: sockets to the fork server and to the standard library's resource tracker
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    start_and_stop()
    assert threading.active_count() == threads
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_worker_is_not_blamed_while_the_policy_stalls() -> None:
    workers, _ = make_workers("central")
    try:
        workers._collecting = True  # without the server's thread, which looks again and again
        assert workers._has_work(0)
        workers._server._last_look -= 1.0
        assert not workers._has_work(0)
    finally:
        workers.stop()


def test_environments_of_groups_are_a_workers_share() -> None:
    config = replace(small_config(worker_kind="central", worker_count=2).workers, envs_per_worker=6)
    shares = [[config.environments_of(worker, group).tolist() for group in (0, 1)] for worker in (0, 1)]
    assert shares == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert CentralWorkers is WORKERS["central"]
