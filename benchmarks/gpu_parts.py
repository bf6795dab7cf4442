"""The parts of a run, each measured alone: stepping, acting, learning, and learning from half replayed batches."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from agents import Agent
from agents.engine.streams import Fence
from agents.networks.base import FeatureNetwork
from benchmarks.building import learner_agent, learner_network
from learner.feeding.host_buffers import HostBuffers
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.machine.measuring import ALMOST_OVER, acting_for_all
from learner.plan import make_plan
from learner.settings.config import DEFAULTS, Config, make_config
from replay import make_mixture
from replay.batch import HostBatch, make_batch
from replay.trajectory import Arrays
from wrappers import make_vector_env

START_SECONDS = 90.0  # that processes may take to import PyTorch and make their environments
REPLAYED = 1000  # trajectories in a replay: 170 MB at 84x84 and T=20

Result = dict[str, Any]


def seconds_a_call(function: Callable[[], object], device: torch.device, budget: float) -> float:
    """Return the median wall time of one call in seconds, including the device's work.

    budget: seconds of measurement, after three calls of warm-up; at least three calls are measured.
    """
    times: list[float] = []
    end = None
    while end is None or time.perf_counter() < end or len(times) < 3:
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
        if end is None and len(times) == 3:
            times, end = [], time.perf_counter() + budget  # discard the warm-up
    return statistics.median(times)


def seconds_in_a_row(function: Callable[[], None], device: torch.device, budget: float) -> float:
    """Return the median wall time of a call in seconds, with several calls queued on the device as in a run."""
    at_once = 5 if device.type == "cuda" else 1

    def calls() -> None:
        for _ in range(at_once):
            function()

    return seconds_a_call(calls, device, budget) / at_once


def config_of(arguments: argparse.Namespace, machine: Machine, **settings: Any) -> Config:
    """Return the config of one measurement: the settings of the command line, and others on top."""
    given = {"env": arguments.env, "network": arguments.network, "device": arguments.device, "batch_size": arguments.batch_size}
    settled, _ = fit_to_machine({**DEFAULTS, **given, **settings}, machine)
    return make_config(settled)


def stepping(config: Config, environments: int, budget: float, start: Callable[[], object] = int) -> Result:
    """Measure the native vector environment alone on one core, with random actions.

    start: is called when the environments are ready, and returns when the measurement may begin.
    """
    env = make_vector_env(config.env, environments, 1)
    env.reset(1)
    generator = np.random.default_rng(0)
    actions = env.spec.action.mask_size
    start()
    call = seconds_a_call(lambda: env.step(generator.integers(actions, size=environments)), torch.device("cpu"), budget)
    env.close()
    return {"microseconds_a_step": 1e6 * call / environments, "steps_per_second": environments / call}


def stepping_together(config: Config, environments: int, processes: int, budget: float) -> Result:
    """Measure processes that only step, all at the same time, each with its own environments."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        begin = partial(manager.Barrier(processes).wait, START_SECONDS)
        waiting = [pool.submit(stepping, config, environments, budget, begin) for _ in range(processes)]
        results = [each.result() for each in waiting]
    speed = sum(result["steps_per_second"] for result in results)
    return {"microseconds_a_step": 1e6 * processes / speed, "steps_per_second": speed}


def acting(config: Config, count: int, budget: float) -> Result:
    """Measure the central policy alone: newest frames to the device, answers back."""
    step = acting_for_all(make_plan(config), count, compiled=config.training.compile).seconds_a_step(budget)
    return {"milliseconds": 1e3 * count * step, "steps_per_second": 1 / step}


def agent_of(config: Config) -> tuple[FeatureNetwork, Agent]:
    """Return a network on the device, and the agent that trains it."""
    network = learner_network(config)
    return network, learner_agent(config, network, threads=config.training.learner_threads, compiled=config.training.compile)


def fill_with_noise(columns: Arrays) -> None:
    """Fill trajectories with frames of noise, without rewards or episode ends."""
    for array in columns.values():
        array.fill(0)
    columns["frames"][:] = np.random.default_rng(0).integers(0, 256, columns["frames"].shape)
    columns["action_used"].fill(True)


def updates_of(config: Config) -> tuple[FeatureNetwork, Callable[[], None]]:
    """Return a network and a function that copies a batch from host memory to the device and makes one update."""
    training, device = config.training, torch.device(config.training.device)
    network, agent = agent_of(config)
    contract = make_plan(config).contract
    columns = HostBuffers(contract, training.batch_size, pinned=device.type == "cuda").take()
    fill_with_noise(columns)
    nothing = np.zeros(training.batch_size, np.int64)

    def update() -> None:
        batch = make_batch(HostBatch(columns, nothing.astype(bool), nothing), contract, device)
        agent.learn(batch, ALMOST_OVER)
        agent.take_skip_reasons()

    return network, update


def learning(config: Config, budget: float) -> Result:
    """Measure updates alone, queued one after another as in a run."""
    training, device = config.training, torch.device(config.training.device)
    _, update = updates_of(config)
    call = seconds_in_a_row(update, device, budget)
    steps = training.batch_size * training.unroll_length
    return {"milliseconds": 1e3 * call, "steps_per_second": steps / call}


def replaying(config: Config, budget: float) -> Result:
    """Measure the inserts for a batch, the batch and its update, one after another in one thread."""
    training, device = config.training, torch.device(config.training.device)
    contract = make_plan(config).contract
    _, agent = agent_of(config)
    generator = np.random.default_rng(0)
    mixture = make_mixture(config.replays, contract, training.batch_size, 1.0, generator, device=device)
    buffers = HostBuffers(contract, training.batch_size, pinned=device.type == "cuda")
    fresh = contract.allocate(2 * training.batch_size)
    fill_with_noise(fresh)
    coming = cycle([{name: array[row] for name, array in fresh.items()} for row in range(2 * training.batch_size)])

    def update() -> None:
        while not mixture.can_sample():
            mixture.insert(next(coming))
        columns, copied = buffers.take(), Fence(device)
        host = mixture.sample(columns)
        batch = make_batch(host, contract, device)
        copied.record()
        agent.learn(batch, ALMOST_OVER)
        agent.take_skip_reasons()
        buffers.give_back(columns, copied)

    call = seconds_in_a_row(update, device, budget)
    return {"milliseconds": 1e3 * call, "updates_per_second": 1 / call}


def half_replayed(place: str) -> str:
    """Return `--replay_parameters` of half replayed batches. place: of the replayed frames, `cpu` (host memory) or `cuda`."""
    replay = {"type": "standard", "capacity": REPLAYED, "sample_ratio": 0.5, "device": place}
    return json.dumps([{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, replay])


def repeating(config: Config) -> Result:
    """Make the same updates twice with deterministic kernels, and compare the weights bit by bit."""
    torch.use_deterministic_algorithms(True)
    try:
        weights = []
        for _ in range(2):
            torch.manual_seed(1)
            network, updates = updates_of(config)
            for _ in range(3):
                updates()
            weights.append(torch.cat([tensor.flatten() for tensor in network.state_dict().values()]))
        return {"equal": torch.equal(*weights), "largest_difference": float((weights[0] - weights[1]).abs().max())}
    finally:
        torch.use_deterministic_algorithms(False)
