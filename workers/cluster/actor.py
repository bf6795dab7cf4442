"""A worker in a Ray actor, on any machine of the cluster: the rollout of a worker process, with slots of its own.

A call brings weights and returns one block of trajectories. The learner copies it into a free slot block of its arena.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch

from agents.compute import prepare_torch
from agents.networks.base import make_network
from replay.trajectory import Arrays
from workers.base import WorkerSetup, allocate_arena, worker_clocks
from workers.infos import INFO_NAMES, INFOS, slots_with_infos
from workers.policy import cpu_policy
from workers.processes.out_of_memory import failure_text
from workers.rollout import Rollout, make_rollout
from workers.weights import SharedWeights, weights_layout
from wrappers import VectorEnv, close_if_needed, make_vector_env


@dataclass(frozen=True)
class ActorLocation:
    """Where an actor runs. node: Ray's id of the node, hexadecimal. pid: process id on that node."""

    node: str
    pid: int


@dataclass(frozen=True)
class CallReport:
    """The outcome of a call.

    Args:
        seconds: float64 `[len(CLOCKS)]`, what the worker's clocks have counted during the call; `[0]` for `build`.
        error: the traceback if the worker failed, or one line if memory ran out; otherwise empty.
    """

    seconds: np.ndarray
    error: str = ""


class RolloutActor:
    """Steps the environments of one worker. `make_actor` makes one on a node of the cluster.

    Args:
        setup: of the run.
        worker: index of the worker in the run.
        seed: seeds its environments and its policy.
    """

    def __init__(self, setup: WorkerSetup, worker: int, seed: int) -> None:
        self._setup = setup
        self._worker = worker
        self._seed = seed
        self._env: VectorEnv | None = None
        self._rollout: Rollout | None = None

    def location(self) -> ActorLocation:
        """Where the actor runs; the first call, answered as soon as the actor is there."""
        return ActorLocation(ray.get_runtime_context().get_node_id(), os.getpid())

    def build(self) -> CallReport:
        """Make the environments and the policy, which takes seconds and needs no weights."""
        try:
            self._build()
        except BaseException as error:  # the boundary of the process: the learner reports the error
            self.close()
            return CallReport(np.zeros(0), failure_text(error))
        return CallReport(np.zeros(0))

    def collect(self, flat: np.ndarray, version: int) -> tuple[CallReport, Arrays]:
        """One trajectory of each environment, `[N, *shape]` each field, acted by these weights.

        flat: float32 `[count]`, of `SharedWeights.read_flat`. version: their update.
        """
        before = self._seconds.copy()
        try:
            assert self._rollout is not None
            self._weights.publish_flat(flat, version)
            self._rollout.collect(0)
        except BaseException as error:
            self.close()
            return CallReport(self._seconds - before, failure_text(error)), {}
        slots = self._rollout.slots
        # Most environments report no numbers, so their rows need not travel.
        unused = () if slots[INFO_NAMES].any() else (INFOS,)
        return CallReport(self._seconds - before), {name: array for name, array in slots.items() if name not in unused}

    def close(self) -> None:
        """Close environments that may hold processes."""
        if self._env:
            close_if_needed(self._env)

    def _build(self) -> None:
        prepare_torch(threads=1)
        setup = self._setup
        with torch.device("meta"):  # as the learner's network: the one that acts may keep its weights in bfloat16
            layout = weights_layout(make_network(setup.network))
        # One block is enough: an actor has one call at a time, and Ray copies the result when the call returns.
        one_block = replace(setup, config=replace(setup.config, worker_count=1, blocks_per_group=1))
        arena = allocate_arena(one_block, layout)
        self._weights = SharedWeights(arena)
        self._seconds: np.ndarray = worker_clocks(arena)[0]
        policy = cpu_policy(setup, self._weights, self._worker, self._seed)
        first = int(setup.config.environments_of(self._worker, 0)[0])
        self._env = env = make_vector_env(setup.env, setup.config.envs_per_worker, first=first)
        slots = slots_with_infos(arena, setup.contract)
        self._rollout = make_rollout(setup, env, policy, slots, self._seconds, self._worker, self._seed)


def make_actor(setup: WorkerSetup, worker: int, seed: int) -> Any:
    """Ask for an actor. Ray spreads actors over the nodes. It takes one CPU, and Ray never restarts it by itself."""
    remote: Any = ray.remote  # its types know no class that is made remote later
    made = remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(RolloutActor)
    return made.remote(setup, worker, seed)
