"""Fits the settings that are `auto` to the machine: its cores, its memory and its GPU, each choice with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agents.compute import computes_bfloat16
from learner.machine.costs import (
    WORTH_DOUBLING,
    Costs,
    answer_takes,
    doubling_saves,
    enough_threads,
    enough_workers,
    expected,
    larger_groups_help,
)
from learner.machine.detect import Machine
from learner.machine.memory_check import LEARNER_RESERVE, WORKER_RESERVE
from learner.machine.reproducible import REPRODUCIBLE
from learner.settings.config import AUTO, Settings, TrainingConfig

MACHINE_SETTINGS = (
    "device",
    "learner_threads",
    "precision",
    "worker_kind",
    "worker_count",
    "envs_per_worker",
    "prepared_batches",
    "test_environments",
)
"""Settings that belong to the machine and not to what is learned: `auto` stays `auto` in a checkpoint."""

SMALL_MACHINE_CORES = 4
PUBLISHED_BATCH = 32
SMALL_BATCH = 8
ENVIRONMENTS = 16
MOST_LEARNER_THREADS = 8
MOST_PREPARED_BATCHES = 4
WORKERS_SHARE = 0.75  # of the memory that the learner leaves


def acting_precision(training: TrainingConfig) -> str:
    """What workers act in: the learner's precision, unless that is a GPU's and the CPU would be slow in it."""
    return training.precision if training.device == "cpu" or computes_bfloat16("cpu") else "float32"


def fit_to_machine(settings: Mapping[str, Any], machine: Machine, costs: Costs | None = None) -> tuple[Settings, list[str]]:
    """Settle every `auto` of the settings. Returns the settled settings and one line for each choice made.

    costs: as measured with what this function chooses without them. They decide how many workers, environments and learner
    threads there are, and only coarsely: these touch what is learned (through the policy lag), and so may not follow the noise
    of a measurement.
    """
    settled = dict(settings)
    reasons: list[str] = []

    def choose(name: str, value: Any, reason: str) -> None:
        if settled[name] == AUTO:
            settled[name] = value
            reasons.append(f"{name}={value} ({reason})")

    for name, (value, reason) in REPRODUCIBLE.items() if settled["reproducible"] else ():
        choose(name, value, f"reproducible: {reason}")
    choose("device", "cuda" if machine.gpu else "cpu", machine.gpu or "no GPU found")
    if settled["device"] == "cuda":
        choose("worker_kind", "central", "one policy on the GPU acts for all workers")
    choose("worker_kind", "cpu", "each worker runs its own copy of the policy")
    cores = machine.cores
    if settled["worker_kind"] == "serial":
        choose("worker_count", 1, "serial: everything in one process")
        choose("prepared_batches", 0, "serial: everything in one thread")
    gpu = settled["device"] == "cuda"
    small = is_small(cores, settled["device"])
    choose("learner_threads", *_learner_threads(costs, cores, gpu=gpu, small=small))
    central = settled["worker_kind"] == "central"
    environments, why = _environments(costs)
    if costs and not central and settled["envs_per_worker"] == AUTO and environments > ENVIRONMENTS:
        costs = replace(costs, act=costs.act_doubled)
    choose("worker_count", *_workers(costs, machine, settled["learner_threads"], small=small))
    choose("envs_per_worker", *(_two_groups(costs, settled["worker_count"]) if central else (environments, why)))
    choose(
        "batch_size",
        SMALL_BATCH if small else PUBLISHED_BATCH,
        f"{'a small machine learns sooner from more and smaller updates' if small else 'the published setting'}; "
        "part of what is learned, so never measured",
    )
    choose(
        "prepared_batches",
        0 if small else MOST_PREPARED_BATCHES,
        "a small machine has no idle core to prepare them" if small else "at most; as few as keep the learner busy",
    )
    quick = settled["device"] in machine.bfloat16
    choose(
        "precision",
        "bfloat16" if quick else "float32",
        f"the {settled['device']} {'multiplies' if quick else 'does not multiply'} bfloat16 in hardware",
    )
    choose("test_environments", min(8 * cores, 64), "games played at once")
    return settled, reasons


def portable_settings(settings: Settings, settled: Settings) -> Settings:
    """The settings that checkpoints carry: what was fitted to this machine stays `auto`, so that another one fits its own.

    A reproducible run carries every value, because another value would give other bits.

    Args:
        settings: as they were given, with `auto`.
        settled: as `fit_to_machine` settled them.
    """
    return settled if settled["reproducible"] else {**settled, **{name: settings[name] for name in MACHINE_SETTINGS}}


def is_small(cores: int, device: str) -> bool:
    """Whether learner and workers share few cores, so that each that waits is a large part of them."""
    return cores <= SMALL_MACHINE_CORES and device != "cuda"


def _learner_threads(costs: Costs | None, cores: int, *, gpu: bool, small: bool) -> tuple[int, str]:
    """Threads of the learner, and why. On a small machine no more than are needed: they take the cores from the workers."""
    if gpu:
        return 1, "the GPU computes"
    most = min(cores, MOST_LEARNER_THREADS)
    if costs and small and (count := enough_threads(costs, cores)) < most:
        return count, f"measured: enough to learn from most of what {cores} cores can collect"
    return most, f"{cores} cores, shared with the workers"


def _workers(costs: Costs | None, machine: Machine, learner_threads: int, *, small: bool) -> tuple[int, str]:
    """Worker processes, and why. On a small machine always one a core: each core that waits is a large part of it."""
    cores = machine.cores
    fit = max(1, int(WORKERS_SHARE * (machine.memory_bytes - LEARNER_RESERVE)) // WORKER_RESERVE)
    count = cores if small or costs is None else enough_workers(costs, cores, learner_threads)
    if fit < count:
        return fit, f"as many as {machine.memory_bytes / 1e9:.1f} GB of memory hold beside the learner and replays"
    if costs is None:
        return cores, f"one a core, {cores} cores"
    stepping, acting, learning = (f"{1e6 * seconds:.0f} us" for seconds in (costs.env, costs.act, costs.learn))
    speed = _rounded(expected(costs, cores))
    return count, (
        f"{f'one a core, {cores} cores' if count == cores else 'they collect more than the learner can take'}; "
        f"measured: stepping {stepping}, acting {acting}, learning {learning} a step, so about {speed:,.0f} steps/s = "
        f"{speed * costs.frames_per_step:,.0f} frames/s"
    )


def _environments(costs: Costs | None) -> tuple[int, str]:
    """Environments of a worker, and why."""
    if costs is None:
        return ENVIRONMENTS, "enough for efficient inference, few enough for a small policy lag"
    saves = doubling_saves(costs)
    told = f"measured: {2 * ENVIRONMENTS} save {max(0.0, saves):.0%} of a step and double the policy lag"
    return (2 * ENVIRONMENTS if saves >= WORTH_DOUBLING else ENVIRONMENTS), told


def _two_groups(costs: Costs | None, workers: int) -> tuple[int, str]:
    """Environments of a worker where one policy acts for all, and why."""
    group = 2 * ENVIRONMENTS if costs and larger_groups_help(costs, workers) else ENVIRONMENTS
    why = f"two groups of {group}: one steps while the policy thinks about the other"
    if costs and costs.gpu_acts:
        now, doubled = (f"{answer_takes(act, costs, workers):.0%}" for act in (costs.act, costs.act_doubled))
        why += f"; measured: to think takes {now} of that time with groups of {ENVIRONMENTS}, {doubled} with twice as many"
    return 2 * group, why


def _rounded(number: float) -> float:
    """To two digits: a measurement of seconds knows no more."""
    return float(f"{number:.2g}")
