"""Shared memory in which each group of environments shows its newest frames and finds what the policy says to them.

Whose turn it is to write, a byte through a pipe says: a group shows its frames and asks, then reads nothing and writes
nothing there until it was answered.
"""

from __future__ import annotations

from replay.slot_store import SharedArrays
from replay.trajectory import Arrays, Field, TrajectoryContract
from workers.base import WorkerConfig

PREFIX = "exchange_"


def exchange_layout(contract: TrajectoryContract, config: WorkerConfig) -> dict[str, Field]:
    """What the arena must hold: for every group `[envs_per_group, ...]` of each of these.

    frames: the newest of each environment. first: bool, it is its episode's first. actions, logits, values, features: what
    `workers.policy.Acted` has, the last empty where nobody asks for it. version: of the weights that acted, once a group.
    """
    fields = {
        "frames": Field(contract.frame_shape, contract.frame_dtype),
        "first": Field((), "bool"),
        "actions": Field((), "int64"),
        "logits": Field((contract.action_count,), "float32"),
        "values": Field((), "float32"),
        "features": Field((contract.feature_count,), "float32"),
    }
    groups = (config.worker_count, config.groups)
    rows = {name: Field((*groups, config.envs_per_group, *shape), dtype) for name, (shape, dtype) in fields.items()}
    return {PREFIX + name: field for name, field in {**rows, "version": Field((*groups, 1), "int64")}.items()}


def exchange_of(shared: SharedArrays, worker: int, group: int) -> Arrays:
    """One group's part of an arena that was laid out with `exchange_layout`."""
    return {name.removeprefix(PREFIX): array[worker, group] for name, array in shared.arrays.items() if name.startswith(PREFIX)}
