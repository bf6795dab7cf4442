"""Workers step the environments, and policies act in them."""

from __future__ import annotations

from collections.abc import Callable

from agents.networks.base import FeatureNetwork
from workers.base import Block, WorkerConfig, WorkerError, Workers, WorkerSetup, groups_of
from workers.central.workers import CentralWorkers
from workers.in_process import InProcessWorkers
from workers.processes.supervisor import CpuWorkers, ServedWorkers
from workers.random_play import RandomPlay, random_observations
from workers.recorded import RecordedWorkers
from workers.seeds import first_seeds
from workers.serial import SerialWorkers

__all__ = [
    "WORKERS",
    "Block",
    "InProcessWorkers",
    "RandomPlay",
    "SerialWorkers",
    "WorkerConfig",
    "WorkerError",
    "WorkerSetup",
    "Workers",
    "first_seeds",
    "groups_of",
    "random_observations",
]


def _ray_workers(setup: WorkerSetup, network: FeatureNetwork) -> Workers:
    """The kind `ray`. Ray is an optional package."""
    from workers.cluster.workers import RayWorkers

    return RayWorkers(setup, network)


WORKERS: dict[str, Callable[[WorkerSetup, FeatureNetwork], Workers]] = {
    "central": CentralWorkers,
    "cpu": CpuWorkers,
    "ray": _ray_workers,
    "recorded": RecordedWorkers,
    "serial": SerialWorkers,
    "served": ServedWorkers,
}
