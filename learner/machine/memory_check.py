"""What the replays of a run take, said before the start, and refused where the machine has not that much now."""

from __future__ import annotations

from learner.settings.config import Config, make_contract
from replay import device_bytes, replay_bytes, replay_names, settle_capacities
from wrappers import make_spec

LEARNER_RESERVE = 1_000_000_000
WORKER_RESERVE = 300_000_000
"""Bytes kept for a process itself: libraries, network, emulators, the trajectories on their way."""

GPU_RESERVE = 4_000_000_000
"""Bytes of a GPU kept for what the learner computes there: about half for the activations of the published batch and network,
the rest for CUDA and its libraries."""


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


def check_memory(config: Config, available: int) -> None:
    """Refuse replays that do not fit into `available` bytes beside the processes. Raises ValueError."""
    replays, reserve = _host_memory(config), reserve_bytes(config)
    workers = config.workers.worker_count
    if config.workers.worker_kind != "serial" and reserve > available >= reserve - (workers - 1) * WORKER_RESERVE:
        most = workers - -(-(reserve - available) // WORKER_RESERVE)
        raise ValueError(
            f"worker_count: wanted at most {most} of {_gigabytes(WORKER_RESERVE)} each (of memory {_gigabytes(available)} are "
            f"available now, {_gigabytes(reserve - workers * WORKER_RESERVE)} of it for the other processes), got {workers}"
        )
    room = max(0, available - reserve)
    if replays > room:
        raise ValueError(
            f"replay_parameters: wanted at most {_gigabytes(room)} of replays (of memory {_gigabytes(available)} are available "
            f"now, {_gigabytes(reserve)} of it for the processes), got {_gigabytes(replays)}; "
            'use a smaller capacity, or "memory" in its place with --compress_replay'
        )


def check_gpu_memory(config: Config, available: int) -> None:
    """Refuse replays that do not fit into the `available` bytes of the GPU beside what the learner computes. ValueError."""
    replays, room = sum(gpu_memory(config)), max(0, available - GPU_RESERVE)
    if replays > room:
        raise ValueError(
            f"replay_parameters: wanted at most {_gigabytes(room)} of replays on the GPU (of its memory "
            f"{_gigabytes(available)} are free now, {_gigabytes(GPU_RESERVE)} of it for the learner), got "
            f'{_gigabytes(replays)}; use a smaller capacity, or "device": "cpu"'
        )


def describe_memory(config: Config) -> list[str]:
    """A line for each replay, and the total."""
    contract = make_contract(config, make_spec(config.env))
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    lines = []
    for name, replay, size, on_gpu in zip(
        replay_names(config.replays), settled, replay_memory(config), gpu_memory(config), strict=True
    ):
        more = "at least " if replay.memory and replay.type != "queue" else ""
        count = f"{more}{replay.capacity:,} trajectories of {contract.unroll_length} steps"
        told = f", {_gigabytes(on_gpu)} of it on the GPU" if on_gpu else ""
        lines.append(f"Replay {name}: {count}, at most {_gigabytes(size)}{told}")
    total = f"{_gigabytes(_host_memory(config))}, beside {_gigabytes(reserve_bytes(config))} for the processes"
    if gpu := sum(gpu_memory(config)):
        room = " with room to save what lies there" if config.saves_replay else ""
        total += f", and {_gigabytes(gpu)} on the GPU{room}"
    return [*lines, f"Replay memory: at most {total}"]


def reserve_bytes(config: Config) -> int:
    """What is kept for the processes themselves."""
    workers = 0 if config.workers.worker_kind == "serial" else config.workers.worker_count
    return LEARNER_RESERVE + (workers + (config.evaluation.eval_period > 0)) * WORKER_RESERVE


def replay_memory(config: Config) -> list[int]:
    """The most bytes that each replay takes."""
    environments = config.workers.worker_count * config.workers.envs_per_worker
    contract = make_contract(config, make_spec(config.env))
    return replay_bytes(config.replays, contract, config.training.batch_size, environments)


def gpu_memory(config: Config) -> list[int]:
    """How much of that is on the GPU."""
    contract = make_contract(config, make_spec(config.env))
    return device_bytes(config.replays, contract, config.training.batch_size)


def _host_memory(config: Config) -> int:
    """The most host memory that the replays take; what lies on the GPU passes through it where it is saved."""
    total = sum(replay_memory(config))
    return total if config.saves_replay else total - sum(gpu_memory(config))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
