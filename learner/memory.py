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
    replays, reserve = sum(_replay_bytes(config)), reserve_bytes(config)
    room = max(0, available - reserve)
    if replays > room:
        raise ValueError(
            f"replay_parameters: wanted at most {room / 1e9:.2f} GB of replays ({available / 1e9:.2f} GB of memory are available "
            f"now, {reserve / 1e9:.2f} GB of it for the processes), got {replays / 1e9:.2f} GB; use a smaller capacity, or "
            '"memory" in its place with --use_replay_compression'
        )


def describe_memory(config: Config) -> list[str]:
    """A line for each replay, and the total."""
    contract = make_contract(config, make_spec(config.env))
    settled = settle_capacities(config.replays, contract, config.training.batch_size)
    sizes = _replay_bytes(config)
    lines = []
    for name, replay, size in zip(replay_names(config.replays), settled, sizes, strict=True):
        count = f"{'at least ' if replay.memory else ''}{replay.capacity:,}"
        lines.append(f"Replay {name}: at most {size / 1e9:.3f} GB, {count} trajectories of {contract.unroll_length} steps")
    return [*lines, f"Replay memory: {sum(sizes) / 1e9:.3f} GB, and {reserve_bytes(config) / 1e9:.2f} GB for the processes"]


def reserve_bytes(config: Config) -> int:
    """What is kept for the processes themselves."""
    workers = 0 if config.workers.kind == "serial" else config.workers.worker_count
    return LEARNER_RESERVE + workers * WORKER_RESERVE


def _replay_bytes(config: Config) -> list[int]:
    environments = config.workers.worker_count * config.workers.envs_per_worker
    contract = make_contract(config, make_spec(config.env))
    return replay_bytes(config.replays, contract, config.training.batch_size, environments)
