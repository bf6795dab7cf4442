"""Fits the settings that are `auto` to the machine: its cores, its memory and its GPU, each choice with its reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

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
from learner.machine.memory_check import LEARNER_RESERVE, WORKER_RESERVE
from learner.settings.config import AUTO, Settings
from learner.settings.declarations import TrainingConfig

SMALL_MACHINE_CORES = 4
PUBLISHED_BATCH = 32
SMALL_BATCH = 8
ENVIRONMENTS = 16
MOST_LEARNER_THREADS = 8
MOST_PREPARED_BATCHES = 4
WORKERS_SHARE = 0.75  # of the memory that the learner leaves


@dataclass(frozen=True)
class Machine:
    """What this process may use.

    memory_bytes: available now, less where a container says so. bfloat16: the devices that multiply bfloat16 in hardware.
    """

    cores: int
    memory_bytes: int
    gpu: str | None
    bfloat16: frozenset[str] = frozenset()


def detect_machine() -> Machine:
    """Look at cores (affinity and container quota), memory and GPU."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    devices = ("cpu", "cuda") if gpu else ("cpu",)
    return Machine(available_cores(), _memory_bytes(), gpu, frozenset(filter(computes_bfloat16, devices)))


def free_gpu_memory() -> int:
    """Bytes of the GPU that nobody uses now."""
    return torch.cuda.mem_get_info()[0]


def available_cores() -> int:
    """Cores that this process may use: its affinity, or less where a container's quota allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def _memory_bytes(root: Path = Path("/")) -> int:
    """MemAvailable, or less where a control group of this process or one above it leaves less."""
    left = [_group_memory_left(group) for group in _memory_groups(root)]
    return min([_memory_available(root), *left])


def _memory_available(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # no Linux


def _memory_groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups, versions 1 and 2, that may bound this process's memory."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _group_memory_left(group: Path) -> int:
    """Limit minus use; cached files that nobody looks at count as free, as the kernel drops them first."""
    limit = _first_line(group / "memory.max") or _first_line(group / "memory.limit_in_bytes")
    used = _first_line(group / "memory.current") or _first_line(group / "memory.usage_in_bytes")
    if not (limit.isdigit() and used.isdigit()):
        return sys.maxsize
    statistics = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
    cached = int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
    return max(0, int(limit) - int(used) + cached)


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


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

    choose("device", "cuda" if machine.gpu else "cpu", machine.gpu or "no GPU found")
    if settled["reproducible"]:
        choose("worker_kind", "serial", "reproducible: one process, a fixed order")
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


def is_small(cores: int, device: str) -> bool:
    """Whether learner and workers share few cores, so that each that waits is a large part of them."""
    return cores <= SMALL_MACHINE_CORES and device != "cuda"


def _learner_threads(costs: Costs | None, cores: int, *, gpu: bool, small: bool) -> tuple[int, str]:
    """Threads of the learner, and why. On a small machine no more than are needed: they take the cores from the workers."""
    if gpu:
        return 1, "the GPU computes"
    most = min(cores, MOST_LEARNER_THREADS)
    if costs and small and (count := enough_threads(costs, cores)) < most:
        return count, f"measured: enough to learn from all that {cores} cores can collect"
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
        f"measured: stepping {stepping}, acting {acting}, learning {learning} a step, so {speed:,.0f} steps/s = "
        f"{speed * costs.frames_per_step:,.0f} frames/s at most"
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
