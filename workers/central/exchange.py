"""Shared memory through which each group of environments passes its newest frames to the policy and gets its actions back.

A one-byte message passes ownership. After asking, a group must not touch its part of the exchange until it is answered.
"""

from __future__ import annotations

from replay.slot_store import SharedArrays
from replay.trajectory import Arrays, Field, TrajectoryContract
from workers.base import WorkerConfig

PREFIX = "exchange_"
FRAME, FIRST, ACTIONS, VERSION = "frame", "first", "actions", "version"
WITH_STATE, STATE = "with_state", "state"


def exchange_layout(contract: TrajectoryContract, config: WorkerConfig) -> dict[str, Field]:
    """The part of the arena that the exchange needs: `[workers, groups, envs_per_group, ...]` of each field.

    frame: the newest of each environment. first: bool, whether it is its episode's first. actions and the contract's
    `policy_fields`: the answer. version: of the weights that acted, one a group. Only for a network with a core: with_state,
    whether the group asks for the recurrent state, and state, which is written only then.
    """
    fields = {FRAME: contract.frame, FIRST: Field((), "bool"), ACTIONS: contract.action, **contract.policy_fields}
    groups = (config.worker_count, config.groups)
    rows = {name: Field((*groups, config.envs_per_group, *shape), dtype) for name, (shape, dtype) in fields.items()}
    if contract.state_size:
        state = Field((*groups, config.envs_per_group, contract.state_size), "float32")
        rows |= {WITH_STATE: Field((*groups, 1), "bool"), STATE: state}
    return {PREFIX + name: field for name, field in {**rows, VERSION: Field((*groups, 1), "int64")}.items()}


def exchange_of(shared: SharedArrays, worker: int, group: int) -> Arrays:
    """One group's part of an arena that `exchange_layout` has laid out, `[envs_per_group, ...]` each field."""
    return {name.removeprefix(PREFIX): array[worker, group] for name, array in shared.arrays.items() if name.startswith(PREFIX)}
