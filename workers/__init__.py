"""Workers: who steps the environments and who acts."""

from __future__ import annotations

from collections.abc import Callable

from agents.networks import ActorCritic
from workers.base import Block, WorkerConfig, WorkerError, Workers, WorkerSetup
from workers.group import ProcessWorkers
from workers.serial import SerialWorkers

__all__ = ["WORKERS", "Block", "WorkerConfig", "WorkerError", "WorkerSetup", "Workers"]

WORKERS: dict[str, Callable[[WorkerSetup, ActorCritic], Workers]] = {"cpu": ProcessWorkers, "serial": SerialWorkers}
