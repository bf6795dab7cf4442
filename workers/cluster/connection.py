"""Joins a Ray cluster, or starts one on this machine for the time of a run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from workers.base import LOCAL, WorkerConfig, WorkerError
from workers.runtime_env import parse_runtime_env

log = logging.getLogger("springbok")

PROGRAM = Path(__file__).resolve().parents[2]
"""The folder that the program lies in."""

CODE: Sequence[str] = ("agents", "replay", "serve", "workers", "wrappers", "setting.py", "checked_files.py")
"""The parts of the program that an actor imports; other machines get a copy."""

SMALLEST_STORE = 100 * 2**20
"""Bytes of Ray's object store. Ray refuses fewer than 75 MB."""

KNOCK_SECONDS = 10.0
REASON = 300  # characters of Ray's reason that a message shows


def connect(config: WorkerConfig, object_bytes: int) -> bool:
    """Join the cluster that the settings name, or start one. Returns whether `disconnect` must be called.

    Call this in the main thread: the processes of a cluster that is started here die with the thread that starts it.

    object_bytes: the most that weights and blocks of trajectories take at a time. Raises WorkerError with one line.
    """
    if ray.is_initialized():  # by the program that this one is a part of
        return False
    join(config.ray_address, **_options(config, object_bytes))
    nodes = [node for node in ray.nodes() if node["Alive"]]
    cpus = ray.cluster_resources().get("CPU", 0.0)
    log.info("Ray: %d worker actors in a cluster of %d nodes with %.0f CPUs", config.worker_count, len(nodes), cpus)
    return True


def join(address: str, **options: Any) -> None:
    """Join the cluster at an address, or start one at LOCAL. options: of `ray.init`. Raises WorkerError with one line."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run reports nothing to Ray's authors
    try:
        if address.rpartition(":")[0]:
            _knock(address)
        ray.init(address=address, **options, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises errors of many types
        reason = " ".join(str(error).split())[:REASON]
        wanted = "ray_address: wanted a Ray cluster that can be used"
        raise WorkerError(f"{wanted}, got {address!r} ({reason})") from None


def _options(config: WorkerConfig, object_bytes: int) -> dict[str, Any]:
    runtime_env = parse_runtime_env(config.ray_runtime_env)
    if config.ray_address == LOCAL:
        # One CPU an actor, whatever the machine has: the learner has counted its cores when it chose the number of workers.
        started = {"num_cpus": config.worker_count, "include_dashboard": False}
        own = {"object_store_memory": max(SMALLEST_STORE, object_bytes), **started}
        return {**own, "runtime_env": runtime_env} if runtime_env else own
    modules = [str(PROGRAM / name) for name in CODE]
    sent = {**runtime_env, "py_modules": [*modules, *runtime_env.get("py_modules", [])]}
    return {"runtime_env": sent}


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


def disconnect() -> None:
    """Leave the cluster; one that was started here ends."""
    ray.shutdown()


def node_is_alive(node: str) -> bool:
    """Whether the cluster still has this node. node: Ray's id, hexadecimal."""
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())
