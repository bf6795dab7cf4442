"""A worker process: build environments and policy, then fill blocks of slots until the learner is gone or says stop.

Where someone else acts, the environments are divided into groups that take turns: one steps while the policy thinks about
another.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from time import perf_counter

import numpy as np

from agents.compute import prepare_torch
from replay.slot_store import SharedArrays, slots_of
from workers.base import WorkerSetup, block_of, worker_clocks
from workers.central.client import CentralPolicy
from workers.central.exchange import exchange_of
from workers.policy import CpuPolicy, LearnerGone, Policy
from workers.rollout import CLOCKS, Rollout
from workers.weights import SharedWeights
from wrappers import make_vector_env

STOP = 255  # instead of a block number
STACK_SIGNAL = signal.SIGUSR1
MOST_ERROR_BYTES = 30_000  # bytes: fewer than any pipe holds
NICENESS = 10
"""How far workers give way to the learner: it works off at once what is there, so no core is idle while workers wait for it,
and what it learns from is younger."""


@dataclass(frozen=True)
class WorkerTask:
    """What one process is to do. worker: which of the run's it is; `free` brings block numbers (or STOP), `filled` takes them,
    a byte each. line: to whoever acts, see `CentralPolicy`; empty where the process acts itself."""

    setup: WorkerSetup
    worker: int
    seed: int
    shared: SharedArrays
    free: Connection
    filled: Connection
    line: tuple[Connection, ...] = ()


def run_worker(task: WorkerTask, errors: Connection) -> None:
    """Entry of a spawned worker. errors: takes the traceback of what went wrong, or at `STACK_SIGNAL` every thread's stack."""
    faulthandler.enable(errors)
    faulthandler.register(STACK_SIGNAL, errors)
    exit_code = 0
    try:
        _collect_blocks(task)
    except LearnerGone:
        pass
    except BaseException:  # a process boundary: the learner says it
        os.write(errors.fileno(), traceback.format_exc().encode()[-MOST_ERROR_BYTES:])
        exit_code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code)  # at once: to take PyTorch down takes long, and threads of an environment may never end


def _collect_blocks(task: WorkerTask) -> None:
    os.nice(NICENESS)  # first: a thread has the niceness of the one that starts it, and ale-py steps in its own
    prepare_torch(threads=1)
    setup, config = task.setup, task.setup.config
    seconds = worker_clocks(task.shared)[task.worker]
    blocks = _BlockPipes(task.free, task.filled, seconds)
    turns = []
    for group in range(config.groups):
        rollout = Rollout(
            make_vector_env(setup.env, config.envs_per_group),
            _make_policy(task, group),
            slots_of(task.shared, setup.contract),
            seconds,
            seed=task.seed + group * config.envs_per_group,
            environment_ids=config.environments_of(task.worker, group),
        )
        turns.append(_fill(blocks, rollout, setup, task.worker))
    for turn in cycle(turns):
        next(turn)


def _make_policy(task: WorkerTask, group: int) -> Policy:
    if task.line:
        return CentralPolicy(exchange_of(task.shared, task.worker, group), group, *(end.fileno() for end in task.line))
    return CpuPolicy(task.setup.make_network(), SharedWeights(task.shared), task.seed, with_features=task.setup.wants_features)


def _fill(blocks: _BlockPipes, rollout: Rollout, setup: WorkerSetup, worker: int) -> Iterator[None]:
    """One group's work, with pauses in which another group may work. Raises LearnerGone."""
    while True:
        while (number := blocks.take()) is None:
            yield
        yield from rollout.steps(block_of(setup.config, worker, number).first_slot)
        blocks.hand_over(number)


class _BlockPipes:
    """Which blocks of slots this worker may write. seconds: its clocks."""

    def __init__(self, free: Connection, filled: Connection, seconds: np.ndarray) -> None:
        self._free = free
        self._filled = filled
        self._seconds = seconds
        self._being_written = 0

    def take(self) -> int | None:
        """A free block; where there is none, None as long as another one is being written, else wait. Raises LearnerGone."""
        if self._being_written and not self._free.poll():
            return None
        waiting = perf_counter()
        message = os.read(self._free.fileno(), 1)
        self._seconds[CLOCKS.index("wait")] += perf_counter() - waiting
        if message in (b"", bytes([STOP])):
            raise LearnerGone
        self._being_written += 1
        return message[0]

    def hand_over(self, number: int) -> None:
        """Tell the learner that the block is complete. Raises LearnerGone."""
        self._being_written -= 1
        try:
            os.write(self._filled.fileno(), bytes([number]))
        except BrokenPipeError:
            raise LearnerGone from None
