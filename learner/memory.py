"""What the replays of a run take, said before the start, and refused where the machine has not that much now."""

from __future__ import annotations

from learner.config import Config, make_contract
from replay import replay_bytes, replay_names, settle_capacities
from wrappers import make_spec

LEARNER_RESERVE = 1_000_000_000
WORKER_RESERVE = 300_000_000
"""Bytes kept for a process itself: libraries, network, emulators, the trajectories on their way."""


def check_memory(config: Config, available: int) -> None:
    """Refuse replays that do not fit into `available` bytes beside the processes. Raises ValueError."""
    replays, reserve = sum(replay_memory(config)), reserve_bytes(config)
    room = max(0, available - reserve)
    if replays > room:
        raise ValueError(
            f"replay_parameters: wanted at most {_gigabytes(room)} of replays (of memory {_gigabytes(available)} are available "
            f"now, {_gigabytes(reserve)} of it for the processes), got {_gigabytes(replays)}; "
            'use a smaller capacity, or "memory" in its place with --use_replay_compression'
        )


def describe_memory(config: Config) -> list[str]:
    """A line for each replay, and the total."""
    contract = make_contract(config, make_spec(config.env))
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    sizes = replay_memory(config)
    lines = []
    for name, replay, size in zip(replay_names(config.replays), settled, sizes, strict=True):
        more = "at least " if replay.memory and replay.type != "queue" else ""
        count = f"{more}{replay.capacity:,} trajectories of {contract.unroll_length} steps"
        lines.append(f"Replay {name}: {count}, at most {_gigabytes(size)}")
    return [
        *lines,
        f"Replay memory: at most {_gigabytes(sum(sizes))}, beside {_gigabytes(reserve_bytes(config))} for the processes",
    ]


def reserve_bytes(config: Config) -> int:
    """What is kept for the processes themselves."""
    workers = 0 if config.workers.kind == "serial" else config.workers.worker_count
    return LEARNER_RESERVE + (workers + (config.training.eval_period > 0)) * WORKER_RESERVE


def replay_memory(config: Config) -> list[int]:
    """The most bytes that each replay takes."""
    environments = config.workers.worker_count * config.workers.envs_per_worker
    contract = make_contract(config, make_spec(config.env))
    return replay_bytes(config.replays, contract, config.training.batch_size, environments)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
