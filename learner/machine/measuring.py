"""Measures the costs of stepping, acting and learning with the settings of a run, before the run (the preflight)."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from agents.compute import prepare_torch, set_tf32
from agents.networks.base import make_network, on_device
from learner.building import agent_class, make_agent
from learner.feeding.host_buffers import HostBuffers
from learner.machine.costs import Costs
from learner.machine.fit import acting_precision, is_small
from learner.machine.timing import Clock, TimedPart, seconds_of_steps
from learner.plan import Plan, make_plan
from learner.settings.config import AUTO, Config, Settings
from learner.settings.schema import MEASURED_SETTINGS
from replay.batch import HostBatch, make_batch
from replay.slot_store import SharedArrays
from workers import WorkerSetup
from workers.base import RECORDED, SERVED
from workers.central.device_policy import DevicePolicy
from workers.central.device_weights import DeviceWeights
from workers.failures import failures_of
from workers.policy import CpuPolicy
from workers.weights import SharedWeights, weights_layout
from wrappers import EnvSpec, close_quietly, describe_env, family_of, make_vector_env
from wrappers.legal import random_actions
from wrappers.spaces import ACTION_MASK, TASK, Packing

FEW_STEPS = 160  # steps of a batch; in larger batches a CPU takes about as long for each step
FEW_ENVIRONMENTS = 2  # each costs the same, and a seventh of a second to make
SLOW_START = 20.0  # seconds to make one, on a busy machine, from which on one environment alone is measured
ALMOST_OVER = 0.999  # progress of the run, at which steps are small: an update costs the same at any
GPU_UPDATES = 5  # updates of one call: in a run the GPU computes one while the next is queued


PART_SECONDS = 0.15  # for each of four parts; building them takes the rest of two seconds


def wants_preflight(settings: Settings, config: Config, cores: int) -> bool:
    """Whether a measurement may decide a setting, so that its two seconds are worth while.

    No time is spent on toy environments, which learn in seconds, on a run in one process, on workers on other machines, or
    without a pace or fresh data to count. An on-policy agent's workers and learner take turns, so no measurement decides a
    setting.

    Args:
        settings: as they were given, with `auto`.
        config: made from them without a measurement.
        cores: that the run may use.
    """
    undecided = [name for name in MEASURED_SETTINGS if settings[name] == AUTO]
    if not is_small(cores, config.training.device):
        undecided = [name for name in undecided if name != "learner_threads"]
    toy = family_of(config.env.env) == "toy"
    return (
        settings["preflight"]
        and bool(undecided)
        and not toy
        and config.workers.worker_kind not in ("serial", "ray", RECORDED, SERVED)
        and not config.workers.on_policy
        and fresh_part(config) > 0
    )


def measure_costs(plan: Plan, seconds: float, *, brief: bool = False) -> Costs:
    """The costs of one agent step. Without a pace a queue or a circular replay is needed: otherwise no step is fresh.

    Args:
        plan: of the run.
        seconds: of measurement for each part. Building the parts takes about a second more.
        brief: step few environments and, on a CPU, act and learn with few steps of a batch. Many workers, long trajectories or
            a slow network would take many seconds there.
    """
    config = plan.config
    prepare_to_measure(config)
    workers, batch, gpu = config.workers, config.training.batch_size, config.training.device == "cuda"
    few = 1 if describe_env(config.env).start_seconds > SLOW_START else FEW_ENVIRONMENTS
    few = max(few, len(plan.spec.tasks))  # the tasks may not cost the same
    stepped = min(workers.envs_per_worker, few) if brief else workers.envs_per_worker
    at_once = acting_at_once(config)
    if brief and not gpu:  # a batch of windows stays whole: its operations are so small that their number decides
        at_once = min(at_once, FEW_STEPS)
        unroll_length = min(config.training.unroll_length, FEW_STEPS)
        batch = batch if config.needs.window else min(batch, FEW_STEPS // unroll_length)
        plan = make_plan(replace(config, training=replace(config.training, unroll_length=unroll_length)), plan.spec)
    parts: dict[str, TimedPart] = {}
    try:
        parts["env"] = stepping(config, stepped, 1)
        parts["act"] = acting(plan, at_once)
        parts["act_doubled"] = acting(plan, 2 * at_once)
        parts["learn"] = learning(plan, batch)
        found = seconds_of_steps(parts, seconds)
    finally:
        for part in parts.values():
            part.close()
    return Costs(
        **{**found, "learn": found["learn"] / fresh_part(config)},
        frames_per_step=plan.spec.frames_per_step,
        gpu_acts=gpu and workers.worker_kind == "central",
        gpu_learns=gpu,
    )


def prepare_to_measure(config: Config) -> None:
    """Set PyTorch up for measurements: one thread on a CPU, and the same precision on a GPU as in a run."""
    prepare_torch(threads=1)
    if config.training.device == "cuda":
        set_tf32(allowed=not agent_class(config).exact)


def acting_at_once(config: Config) -> int:
    """Environments that the policy acts for at once: those of a worker, or one group of every worker for a central policy."""
    workers = config.workers
    return workers.worker_count * workers.envs_per_group if workers.worker_kind == "central" else workers.envs_per_worker


def fresh_part(config: Config) -> float:
    """The fresh steps for each row that is learned from; 0 if no pace, queue or circular replay decides how many there are."""
    needs = config.needs
    if needs.updates_per_step is not None:
        return 1 / (needs.updates_per_step * config.training.batch_size * (needs.window or config.training.unroll_length))
    return sum(replay.sample_ratio * replay.fresh_part for replay in config.replays)


def stepping(config: Config, num_envs: int, threads: int) -> TimedPart:
    """Native steps of environments with random actions, in CPU time on one thread, in wall time on several."""
    with failures_of("random play before training"), ExitStack() as undo:
        env = make_vector_env(config.env, num_envs, threads)
        undo.callback(close_quietly, env)
        shown = env.reset(1)
        undo.pop_all()
    generator = np.random.default_rng(0)

    def step() -> None:
        nonlocal shown
        with failures_of("random play before training"):
            shown = env.step(random_actions(env.spec, shown, generator)).observations

    return TimedPart(step, num_envs, time.process_time if threads == 1 else time.perf_counter, partial(close_quietly, env))


def acting(plan: Plan, num_envs: int) -> TimedPart:
    """Inference for `num_envs` environments at once, in CPU time on one core or wall time on a GPU."""
    if plan.config.workers.worker_kind == "central":
        return acting_for_all(plan, num_envs)
    network = make_network(replace(plan.network, precision=acting_precision(plan.config.training)))
    weights = SharedWeights(SharedArrays(weights_layout(network)))
    policy = CpuPolicy(network.only_act(), weights, seed=1)
    observations = random_frames(plan.spec, (num_envs, plan.spec.frames_stacked))
    return TimedPart(lambda: policy.act(observations), num_envs, time.process_time)


def acting_for_all(plan: Plan, num_envs: int, *, compiled: bool = False) -> TimedPart:
    """The central policy alone: copies the newest frames to the learner's device and the actions back."""
    config, device = plan.config, torch.device(plan.config.training.device)
    network = replace(plan.network, precision=config.training.precision)
    learner_network = on_device(make_network(network), device)
    weights = DeviceWeights(learner_network)
    weights.publish(learner_network, 1)
    setup = WorkerSetup(config.env, plan.spec, network, plan.contract, config.workers, (), compiled=compiled)
    policy = DevicePolicy(setup, weights, num_envs, device, seed=1)
    frames = random_frames(plan.spec, (num_envs,))
    first, everyone = np.zeros(num_envs, bool), np.arange(num_envs)
    return TimedPart(lambda: policy.act([frames], [first], [everyone]), num_envs, _clock(device), device=device)


def learning(plan: Plan, batch_size: int) -> TimedPart:
    """Batches and updates as in a run, in CPU time on one core or wall time on a GPU. batch_size: columns of each batch."""
    config, contract = plan.config, plan.contract
    device = torch.device(config.training.device)
    gpu = device.type == "cuda"
    network = on_device(make_network(replace(plan.network, precision=config.training.precision)), device)
    agent = make_agent(config, network)
    batch_size *= config.needs.batches_at_once
    columns = HostBuffers(contract, batch_size, pinned=gpu).take()
    # Fresh memory may hold non-finite numbers, and the update would then be refused.
    for array in columns.values():
        array.fill(0)
    columns["frames"][:] = random_frames(plan.spec, columns["frames"].shape[:2])
    columns["action_used"][:] = True
    nothing = np.zeros(batch_size, np.int64)
    updates = GPU_UPDATES if gpu else 1

    def update() -> None:
        for _ in range(updates):
            batch = make_batch(HostBatch(columns, nothing.astype(bool), nothing), contract, device)
            agent.learn(batch, ALMOST_OVER)
            # A run reads these once per update too; unread ones would accumulate.
            agent.take_skip_reasons()
        if gpu:
            torch.cuda.synchronize(device)

    rows = config.needs.window or config.training.unroll_length
    return TimedPart(update, updates * batch_size * rows, _clock(device), device=device)


def random_frames(spec: EnvSpec, dims: tuple[int, ...]) -> np.ndarray:
    """Random frames `[*dims, *frame_shape]`: bytes, or normally distributed numbers. Every action is legal, and the task 0."""
    generator = np.random.default_rng(0)

    def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        whole = np.dtype(dtype).kind in "iu"
        return (generator.integers(0, 256, shape) if whole else generator.normal(size=shape)).astype(dtype)

    if not spec.leaves:
        return draw((*dims, *spec.frame_shape), spec.frame_dtype)
    count = math.prod(dims)
    values = {leaf.name: draw((count, *leaf.shape), leaf.dtype) for leaf in spec.leaves}
    if ACTION_MASK in values:
        values[ACTION_MASK][:] = 1
    if TASK in values:
        values[TASK][:] = 0
    return Packing(spec.leaves).pack(values).reshape(*dims, *spec.frame_shape)


def _clock(device: torch.device) -> Clock:
    """CPU time if the CPU computes: other programs on the machine hardly change it. Wall time for a GPU."""
    return time.process_time if device.type == "cpu" else time.perf_counter
