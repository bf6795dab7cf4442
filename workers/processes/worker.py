"""A worker process: builds its environments and its policy, then fills slot blocks until the learner stops it or is gone.

The central kind has two groups of environments in each worker. They take turns: while one group steps, the learner's process
computes the actions of the other.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection

import numpy as np

from agents.compute import prepare_torch
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.base import WorkerSetup, block_of, worker_clocks
from workers.central.client import CentralPolicy
from workers.central.exchange import exchange_of
from workers.clocks import Clocks
from workers.infos import slots_with_infos
from workers.policy import LearnerGone, WorkerPolicy, cpu_policy
from workers.processes.out_of_memory import failure_text
from workers.rollout import Rollout, make_rollout
from workers.weights import SharedWeights
from wrappers import close_if_needed, make_vector_env

STOP = 255  # sent instead of a block number
ENDING = "ending"
ENDING_LAYOUT: Mapping[str, Field] = {ENDING: Field((1,), "bool")}
"""The arena's flag that the run ends. Workers read it before each step, because a slot block may take minutes."""
STACK_SIGNAL = signal.SIGUSR1
MAX_ERROR_BYTES = 30_000  # less than any pipe holds, so that writing never blocks
WAIT_SLICE = 0.1  # seconds of waiting that are counted at once
NICENESS = 10
"""Niceness of workers. The learner runs first, so waiting trajectories are used at once and policy lag is lower."""


@dataclass(frozen=True)
class WorkerTask:
    """The data that a worker process needs: the argument of `run_worker`.

    worker: index of the worker in the run. seed: seeds its environments and its policy. shared: the run's arena.
    policy_pipes: the worker's ends of the pipes to the policy that acts for it (`CentralPolicy`); empty if the worker acts
    itself.
    """

    setup: WorkerSetup
    worker: int
    seed: int
    shared: SharedArrays
    policy_pipes: tuple[Connection, ...] = ()


def run_worker(task: WorkerTask, free: Connection, filled: Connection, errors: Connection) -> None:
    """Run a worker process to its end; never returns.

    Args:
        task: what the worker does.
        free: brings numbers of free blocks, or STOP, one byte each.
        filled: takes numbers of filled blocks, one byte each.
        errors: takes the traceback if the worker fails, or one line if memory ran out. At `STACK_SIGNAL` it takes the stack of
            every thread.
    """
    faulthandler.enable(errors)
    faulthandler.register(STACK_SIGNAL, errors)
    exit_code = 0
    try:
        _work(task, free, filled)
    except LearnerGone:
        pass
    except BaseException as error:  # the boundary of the process: the learner reports the error
        # The end of a traceback names the error, so a long one loses its beginning.
        os.write(errors.fileno(), failure_text(error).encode()[-MAX_ERROR_BYTES:])
        exit_code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Exit without clean-up: tearing down PyTorch is slow, and an environment may have threads that never end.
    os._exit(exit_code)


def _work(task: WorkerTask, free: Connection, filled: Connection) -> None:
    """Fill blocks for ever. Raises LearnerGone."""
    os.nice(NICENESS)  # before ale-py starts its threads, because a new thread inherits the niceness of its creator
    prepare_torch(threads=1)
    if task.setup.server:
        from workers.served.process import serve_clients  # its packages are optional

        serve_clients(task, free, filled)
    else:
        _collect_blocks(task, free, filled)


def _collect_blocks(task: WorkerTask, free: Connection, filled: Connection) -> None:
    """Fill blocks with environments of this process. Raises LearnerGone."""
    setup, config = task.setup, task.setup.config
    seconds = worker_clocks(task.shared)[task.worker]
    blocks = _BlockPipes(free, filled, seconds)
    turns = []
    with ExitStack() as closing:
        for group in range(config.groups):
            first = int(config.environments_of(task.worker, group)[0])
            env = make_vector_env(setup.env, config.envs_per_group, first=first)
            slots = slots_with_infos(task.shared, setup.contract)
            closing.callback(close_if_needed, env)
            _check_ending(task.shared)  # the environments' first resets may take long
            rollout = make_rollout(setup, env, _make_policy(task, group), slots, seconds, task.worker, task.seed, group)
            turns.append(_fill_blocks(blocks, rollout, setup, task.worker))
        for turn in cycle(turns):
            next(turn)
            _check_ending(task.shared)


def _check_ending(shared: SharedArrays) -> None:
    """Raise LearnerGone if the run ends."""
    if shared.arrays[ENDING][0]:
        raise LearnerGone


def _make_policy(task: WorkerTask, group: int) -> WorkerPolicy:
    if task.policy_pipes:
        descriptors = (pipe.fileno() for pipe in task.policy_pipes)
        return CentralPolicy(exchange_of(task.shared, task.worker, group), group, *descriptors)
    return cpu_policy(task.setup, SharedWeights(task.shared), task.worker, task.seed)


def _fill_blocks(blocks: _BlockPipes, rollout: Rollout, setup: WorkerSetup, worker: int) -> Iterator[None]:
    """Fill blocks with one group of environments; yields where another group may work. Raises LearnerGone."""
    while True:
        while (number := blocks.take(rollout)) is None:
            yield
        yield from rollout.steps(block_of(setup.config, worker, number).first_slot)
        blocks.hand_over(number)


class _BlockPipes:
    """The worker's ends of the pipes for free and filled blocks, shared by its groups.

    seconds: the worker's clocks, float64 `[len(CLOCKS)]`; waiting for a free block is added in place.
    """

    def __init__(self, free: Connection, filled: Connection, seconds: np.ndarray) -> None:
        self._free = free
        self._filled = filled
        self._clocks = Clocks(seconds)
        self._being_filled = 0
        self._waiting: list[object] = []  # groups, the one that has waited longest first

    def take(self, group: object) -> int | None:
        """Return the number of a free block for a group.

        Returns None if another group has waited longer, or if no block is free while another group fills one. Otherwise waits.
        Raises LearnerGone.
        """
        if group not in self._waiting:
            self._waiting.append(group)
        # Without an order the group that has just filled a block would take the next one too, whenever blocks are rare.
        if group is not self._waiting[0] or (self._being_filled and not self._free.poll()):
            return None
        self._wait()
        message = os.read(self._free.fileno(), 1)
        if message in (b"", bytes([STOP])):  # b"" is the end of the file: the learner has died
            raise LearnerGone
        self._waiting.remove(group)
        self._being_filled += 1
        return message[0]

    def _wait(self) -> None:
        """Wait for a message. The clock advances meanwhile, so a long wait is shared among the records of metrics."""
        ready = False
        while not ready:
            with self._clocks.stage("wait"):
                ready = self._free.poll(WAIT_SLICE)

    def hand_over(self, number: int) -> None:
        """Send the number of a block that is complete. Raises LearnerGone."""
        self._being_filled -= 1
        try:
            os.write(self._filled.fileno(), bytes([number]))
        except BrokenPipeError:
            raise LearnerGone from None
