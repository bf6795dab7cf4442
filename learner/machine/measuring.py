"""Measures stepping, acting and learning, each alone, with the settings of a run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from agents import AGENTS
from agents.compute import allow_tf32, prepare_torch
from agents.networks.actor_critic import ActorCritic, make_network, on_device
from learner.feeding.host_buffers import HostBuffers
from learner.machine.costs import Costs
from learner.machine.machine import acting_precision
from learner.settings.config import Config, make_contract
from replay import replay_names
from replay.slot_store import SharedArrays
from replay.trajectory import make_batch
from workers.central.device_policy import DevicePolicy
from workers.central.device_weights import DeviceWeights
from workers.policy import CpuPolicy
from workers.weights import SharedWeights, weights_layout
from wrappers import make_spec, make_vector_env

Clock = Callable[[], float]
CPU = torch.device("cpu")

FEW_STEPS = 160  # of a batch; beyond so many a CPU takes about as long for each
FEW_ENVIRONMENTS = 2  # each costs the same, and a seventh of a second to make
GPU_WARM_UP = 3  # calls: the first ones load libraries and kernels, for seconds
GPU_UPDATES = 5  # a call: in a run one is queued while the one before is computed


def measure_costs(config: Config, seconds: float, *, brief: bool = False) -> Costs:
    """All parts, with about `seconds` of measurement for each, beside what it takes to build them. Wants a queue among the
    replays: without it no step is fresh.

    brief: step few environments and, on a CPU, act and learn with few steps of a batch: many workers, long trajectories or a
    slow network would take many seconds there.
    """
    prepare_to_measure(config)
    workers, batch, gpu = config.workers, config.training.batch_size, config.training.device == "cuda"
    stepped = min(workers.envs_per_worker, FEW_ENVIRONMENTS) if brief else workers.envs_per_worker
    at_once = acting_at_once(config)
    if brief and not gpu:
        at_once = min(at_once, FEW_STEPS)
        unroll_length = min(config.training.unroll_length, FEW_STEPS)
        batch = min(batch, FEW_STEPS // unroll_length)
        config = replace(config, training=replace(config.training, unroll_length=unroll_length))
    env = stepping(config, stepped, 1)
    try:
        return Costs(
            env=env.seconds_a_step(seconds),
            act=acting(config, at_once).seconds_a_step(seconds / 2),
            act_doubled=acting(config, 2 * at_once).seconds_a_step(seconds / 2),
            learn=learning(config, batch).seconds_a_step(seconds) / fresh_part(config),
            frames_per_step=make_spec(config.env).frames_per_step,
            gpu_acts=gpu and workers.worker_kind == "central",
            gpu_learns=gpu,
        )
    finally:
        env.close()


def prepare_to_measure(config: Config) -> None:
    """To be called before parts are measured: one thread computes, and a GPU as it does in the run."""
    prepare_torch(threads=1)
    if config.training.device == "cuda":
        allow_tf32()


def acting_at_once(config: Config) -> int:
    """Environments that the policy answers at once: a worker's own, or a group of every worker where one acts for all."""
    workers = config.workers
    return workers.worker_count * workers.envs_per_group if workers.worker_kind == "central" else workers.envs_per_worker


def fresh_part(config: Config) -> float:
    """The part of a batch that is fresh; 0 where no queue is among the replays."""
    return sum(replay.sample_ratio for replay in config.replays if replay.type == "queue")


@dataclass(frozen=True)
class Part:
    """One part of the work, alone and built: `call` does it for so many `steps`, whose time `clock` tells.

    device: that computes; a GPU's first calls are left out of the time and of the budget.
    """

    call: Callable[[], object]
    steps: int
    clock: Clock
    close: Callable[[], None] = lambda: None
    device: torch.device = CPU

    def seconds_a_step(self, budget: float) -> float:
        """Median over the calls of about `budget` seconds."""
        for _ in range(GPU_WARM_UP if self.device.type == "cuda" else 0):
            self.call()
        return seconds_a_call(self.call, budget, self.clock) / self.steps


def stepping(config: Config, num_envs: int, threads: int) -> Part:
    """Environments stepped natively with random actions: CPU time on one thread, wall time on more."""
    env = make_vector_env(config.env, num_envs, threads)
    env.reset(1)
    generator = np.random.default_rng(0)

    def step() -> None:
        env.step(generator.integers(env.spec.action_count, size=num_envs))

    return Part(step, num_envs, time.process_time if threads == 1 else time.perf_counter, env.close)


def acting(config: Config, num_envs: int) -> Part:
    """Inference for `num_envs` environments at once, where this kind of workers has it: CPU time on one core, wall time on a
    GPU."""
    if config.workers.worker_kind == "central":
        return acting_for_all(config, num_envs)
    spec = make_spec(config.env)
    network = _network(config, acting_precision(config.training))
    weights = SharedWeights(SharedArrays(weights_layout(network)))
    policy = CpuPolicy(network.only_act(), weights, seed=1)
    observations = np.random.default_rng(0).integers(0, 256, (num_envs, *spec.observation_shape)).astype(spec.frame_dtype)
    return Part(lambda: policy.act(observations), num_envs, time.process_time)


def acting_for_all(config: Config, num_envs: int, *, compiled: bool = False) -> Part:
    """The policy of the central kind alone: newest frames up to the learner's device, answers down."""
    spec, device = make_spec(config.env), torch.device(config.training.device)
    learner_network = on_device(_network(config, config.training.precision), device)
    weights = DeviceWeights(learner_network)
    weights.publish(learner_network, 1)
    network = _network(config, config.training.precision).only_act()
    policy = DevicePolicy(network, weights, spec, num_envs, device, seed=1, compiled=compiled)
    frames = np.random.default_rng(0).integers(0, 256, (num_envs, *spec.frame_shape)).astype(spec.frame_dtype)
    first, everyone = np.zeros(num_envs, bool), np.arange(num_envs)
    return Part(lambda: policy.act([frames], [first], [everyone]), num_envs, _clock(device), device=device)


def learning(config: Config, batch_size: int) -> Part:
    """Batch making and updates as in a run, for the steps of their batches: CPU time on one core, wall time on a GPU."""
    spec = make_spec(config.env)
    device = torch.device(config.training.device)
    gpu = device.type == "cuda"
    network = on_device(_network(config, config.training.precision), device)
    agent = AGENTS[config.agent](config.agent_settings, network, replay_names(config.replays))
    columns = HostBuffers(make_contract(config, spec), batch_size, pinned=gpu).take()
    for array in columns.values():
        array.fill(0)
    columns["frames"][:] = np.random.default_rng(0).integers(0, 256, columns["frames"].shape)
    columns["action_used"][:] = True
    nothing = np.zeros(batch_size, np.int64)
    updates = GPU_UPDATES if gpu else 1

    def update() -> None:
        for _ in range(updates):
            batch = make_batch(columns, nothing.astype(bool), nothing, spec.frames_stacked, device)
            agent.update(batch, 1e-6)
            agent.take_verdicts()
        if gpu:
            torch.cuda.synchronize(device)

    return Part(update, updates * batch_size * config.training.unroll_length, _clock(device), device=device)


def _clock(device: torch.device) -> Clock:
    """CPU time where the CPU computes: it tells what a call costs whatever else the machine does."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def seconds_a_call(function: Callable[[], object], budget: float, clock: Clock) -> float:
    """Median time of one call by `clock`, over about `budget` seconds. The first is warm-up, unless it takes all of them.

    By wall time where that clock stands still during a call: CPU time in a sandbox (gVisor) may tick a hundred times a second.
    """
    end = time.perf_counter() + budget
    times: list[tuple[float, float]] = []  # by the clock, by the wall
    while not times or time.perf_counter() < end:
        started, started_on_the_wall = clock(), time.perf_counter()
        function()
        times.append((clock() - started, time.perf_counter() - started_on_the_wall))
    by_clock, by_wall = zip(*(times[1:] or times), strict=True)
    return statistics.median(by_clock if all(by_clock) else by_wall)


def _network(config: Config, precision: str) -> ActorCritic:
    spec = make_spec(config.env)
    return make_network(config.network, spec.observation_shape, spec.action_count, precision=precision)
