"""Counts the memory that a run takes and refuses a run that does not fit into what the machine has available now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from learner.building import make_network_shapes
from learner.plan import Plan
from learner.settings.config import Config
from replay import device_bytes, most_compared, replay_bytes, replay_names, settle_capacities
from replay.slot_store import ALIGNMENT, slot_layout
from replay.trajectory import Field
from workers.base import RECORDED
from workers.central.exchange import exchange_layout
from workers.infos import info_layout
from workers.weights import weights_layout
from wrappers import family_of

LEARNER_RESERVE = 1_000_000_000
"""Bytes of the learner's process: libraries, the network, its optimiser and activations."""

WORKER_RESERVE = 300_000_000
"""Bytes of a worker or evaluation process: libraries and its copy of the network."""

GPU_RESERVE = 4_000_000_000
"""Bytes of the GPU that the learner needs: about half for the activations of the published batch and network, the rest for
CUDA and its libraries."""

EMULATOR_BYTES = {"atari": 1_500_000, "toy": 2_000}
"""Bytes of one environment in a worker, by family. Measured with ale-py 0.12 as growth of a process with 16 to 128 games."""

OTHER_EMULATOR_BYTES = 5_000_000
"""Bytes of one environment of any other family. Measured with Gymnasium 1.4: CartPole 2 kB, LunarLander 0.1 MB, Taxi 0.8 MB,
Ant and Humanoid 1.2 MB, CarRacing 4.2 MB. An environment that takes more is undercounted."""

OBSERVATION_COPIES = 6
"""Copies of its observation that one environment holds. Measured: 1 MB more for an Atari game at 210 x 210 than at 84 x 84."""


def check_replay_devices(config: Config) -> None:
    """Refuse replays on a GPU that the learner does not use, or compressed ones there. Raises ValueError."""
    for index, replay in enumerate(config.replays):
        if replay.device == "cpu":
            continue
        if config.training.device != replay.device:
            raise ValueError(
                f'replay_parameters[{index}]: wanted --device={replay.device} or "device": "cpu", got '
                f'"device": "{replay.device}" with --device={config.training.device}'
            )
        if replay.compress:
            raise ValueError(
                f'replay_parameters[{index}]: wanted --nocompress_replay or "device": "cpu", got '
                f'"device": "{replay.device}" with --compress_replay'
            )


@dataclass(frozen=True)
class HostMemory:
    """The most bytes of host memory that a run takes.

    Args:
        processes: the learner, the workers and the evaluation process themselves.
        environments: emulators and their observations, and weights of their own if the agent gives them some.
        arena: shared memory with the trajectories that workers fill, and the weights.
        batches: buffers of batches, and on a CPU the stacked observations of one; the same of stored trajectories that a replay
            compares.
        replays: all replays when they are full.
    """

    processes: int
    environments: int
    arena: int
    batches: int
    replays: int

    @property
    def total(self) -> int:
        return sum(astuple(self))

    @property
    def without_replays(self) -> int:
        return self.total - self.replays


def host_memory(plan: Plan) -> HostMemory:
    """The most bytes of host memory that this run takes."""
    config, contract = plan.config, plan.contract
    training, workers, evaluation = config.training, config.workers, config.evaluation
    processes = workers.own_processes + evaluation.evaluates
    family = family_of(config.env.env) or ""
    row = contract.bytes_per_trajectory // (contract.unroll_length + contract.frames_stacked)  # mostly one frame
    emulator = EMULATOR_BYTES.get(family, OTHER_EMULATOR_BYTES) + OBSERVATION_COPIES * contract.frames_stacked * row
    stepped = workers.stepped_here + evaluation.environments * evaluation.evaluates
    batch = config.columns_at_once * contract.of_batch.bytes_per_trajectory
    stacked = 0 if training.device == "cuda" else contract.frames_stacked
    compared = most_compared(config.replays, contract, config.columns_at_once) * contract.bytes_per_trajectory
    weighed = 0 if workers.worker_kind == "central" else workers.stepped_here
    buffers = training.prepared_batches + 2 if training.prepared_batches else 1  # one is filled, one is learned from
    return HostMemory(
        processes=LEARNER_RESERVE + processes * WORKER_RESERVE,
        environments=stepped * emulator + weighed * make_network_shapes(plan.network).bytes_per_environment,
        arena=_arena_bytes(plan),
        batches=(buffers + stacked) * batch + (1 + stacked) * compared,
        replays=_replays_in_host_memory(plan),
    )


def _arena_bytes(plan: Plan) -> int:
    """Bytes of shared memory, see `workers.base.allocate_arena`: slots, worker clocks, a flag, and weights or the exchange."""
    workers, contract = plan.config.workers, plan.contract
    count = workers.worker_count * workers.blocks_per_worker * workers.envs_per_group
    slots = {**slot_layout(contract, count), **info_layout(contract, count)}
    acting: Mapping[str, Field] = {}
    if workers.worker_kind == "central":
        acting = exchange_layout(contract, workers)
    elif workers.worker_kind != RECORDED:
        acting = weights_layout(make_network_shapes(plan.network))
    sizes = [prod(field.shape) * np.dtype(field.dtype).itemsize for field in (*slots.values(), *acting.values())]
    # Clocks take one cache line for each worker, the workers' flag takes one, and padding at most one for each array.
    return sum(sizes) + ALIGNMENT * (len(sizes) + workers.worker_count + 1)


def check_memory(plan: Plan, available: int) -> None:
    """Refuse a run that does not fit into `available` bytes of host memory. Raises ValueError, naming a setting to change.

    With several learners it is one learner that must fit into its part of the memory.
    """
    needed = host_memory(plan)
    if needed.without_replays > available:
        raise ValueError(_too_large(plan, needed, available))
    if needed.total > available:
        room = available - needed.without_replays
        raise ValueError(
            f"replay_parameters: wanted at most {_gigabytes(room)} of replays ({_gigabytes(available)} of memory are available "
            f"now{_of_each(plan.config)}, {_gigabytes(needed.without_replays)} of it for everything else), got "
            f"{_gigabytes(needed.replays)}; "
            'use a smaller capacity, or "memory" in its place with --compress_replay'
        )


def _too_large(plan: Plan, needed: HostMemory, available: int) -> str:
    """Why a run does not fit even without its replays: too many workers, else too many environments, else all together."""
    config, workers = plan.config, plan.config.workers
    sizes = f"{_gigabytes(available)} of memory are available now{_of_each(config)}, this run takes {_described(needed)}"
    if workers.own_processes and (most := _most(plan, "worker_count", available)):
        given = f"envs_per_worker={workers.envs_per_worker}"
        return f"worker_count: wanted at most {most} with {given} ({sizes}), got {workers.worker_count}"
    most = _most(plan, "envs_per_worker", available)
    if most := most - most % workers.groups:
        given = f"worker_count={workers.worker_count}"
        return f"envs_per_worker: wanted at most {most} with {given} ({sizes}), got {workers.envs_per_worker}"
    return (
        f"memory: wanted at least {_gigabytes(needed.total)} ({_described(needed)}), got {_gigabytes(available)} that are "
        f"available now{_of_each(config)}; use a smaller --batch_size, --unroll_length or replay capacity, or end other "
        "programs"
    )


def _of_each(config: Config) -> str:
    """Says that figures are those of one of several learners."""
    learners = config.training.learner_count
    return f" for each of {learners} learners" if learners > 1 else ""


def _most(plan: Plan, name: str, available: int) -> int:
    """The largest value of a worker setting, below the present one, with which the run fits; 0 if none does."""

    def too_large(value: int) -> bool:
        given: dict[str, Any] = {name: value}
        config = replace(plan.config, workers=replace(plan.config.workers, **given))
        return host_memory(replace(plan, config=config)).total > available

    return bisect_left(range(1, getattr(plan.config.workers, name)), True, key=too_large)


def check_gpu_memory(plan: Plan, available: int) -> None:
    """Refuse replays that do not fit into the `available` bytes of the GPU together with the learner. Raises ValueError."""
    replays, room = sum(gpu_memory(plan)), max(0, available - GPU_RESERVE)
    if replays > room:
        raise ValueError(
            f"replay_parameters: wanted at most {_gigabytes(room)} of replays on the GPU ({_gigabytes(available)} of its "
            f"memory are free now, {_gigabytes(GPU_RESERVE)} of it for the learner), got {_gigabytes(replays)}; "
            'use a smaller capacity, or "device": "cpu"'
        )


def describe_memory(plan: Plan) -> list[str]:
    """A line for each replay, and one for the whole run."""
    config, contract = plan.config, plan.contract
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    lines = []
    for name, replay, size, on_gpu in zip(
        replay_names(config.replays), settled, replay_memory(plan), gpu_memory(plan), strict=True
    ):
        at_least = "at least " if replay.memory and replay.type != "queue" else ""
        count = f"{at_least}{replay.capacity:,} trajectories of {contract.unroll_length} steps"
        gpu_part = f", {_gigabytes(on_gpu)} of it on the GPU" if on_gpu else ""
        lines.append(f"Replay {name}: {count}, at most {_gigabytes(size)}{gpu_part}")
    needed = host_memory(plan)
    total = f"{_gigabytes(needed.total)} ({_described(needed)})"
    if gpu := sum(gpu_memory(plan)):
        room = "; host memory has room to save it" if config.saves_replay else ""
        total += f", and {_gigabytes(gpu)} on the GPU{room}"
    return [*lines, f"Memory{_of_each(config)}: at most {total}"]


def replay_memory(plan: Plan) -> list[int]:
    """The most bytes that each replay takes, on the host and the GPU together."""
    config = plan.config
    return replay_bytes(config.replays, plan.contract, config.training.batch_size, config.workers.environments)


def gpu_memory(plan: Plan) -> list[int]:
    """The bytes of each replay that lie on the GPU."""
    return device_bytes(plan.config.replays, plan.contract, plan.config.training.batch_size)


def _replays_in_host_memory(plan: Plan) -> int:
    """Bytes. Frames on the GPU pass through host memory when they are saved, so they count if the run saves its replays."""
    total = sum(replay_memory(plan))
    return total if plan.config.saves_replay else total - sum(gpu_memory(plan))


def _described(memory: HostMemory) -> str:
    return ", ".join(f"{name} {_gigabytes(size)}" for name, size in asdict(memory).items())


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
