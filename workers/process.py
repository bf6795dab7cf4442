"""A worker process: build environments and policy, then fill blocks of slots until the learner is gone or says stop."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from time import perf_counter

from agents.compute import prepare_torch
from replay.slot_store import SharedArrays, slots_of
from workers.base import WorkerSetup, block_of, worker_clocks
from workers.policy import CpuPolicy
from workers.rollout import CLOCKS, Rollout
from workers.weights import SharedWeights
from wrappers import make_vector_env

STOP = -1


def run_worker(
    setup: WorkerSetup, worker: int, shared: SharedArrays, free: Connection, filled: Connection, parent: int
) -> None:
    """Entry of a spawned worker. `free` brings block numbers (or STOP), `filled` takes block numbers or an error text."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the learner decides
    try:
        _collect_blocks(setup, worker, shared, free, filled)
    except (EOFError, BrokenPipeError):
        pass  # the learner is gone
    except BaseException:  # a process boundary: the learner raises it again
        filled.send(traceback.format_exc())
        sys.exit(1)


def _collect_blocks(setup: WorkerSetup, worker: int, shared: SharedArrays, free: Connection, filled: Connection) -> None:
    prepare_torch(threads=1)
    config = setup.config
    seconds = worker_clocks(shared)[worker]
    env = make_vector_env(setup.env, config.envs_per_worker)
    policy = CpuPolicy(setup.make_network(), SharedWeights(shared), setup.seeds[worker], with_features=setup.wants_features)
    rollout = Rollout(
        env,
        policy,
        slots_of(shared, setup.contract),
        seconds,
        seed=setup.seeds[worker],
        first_environment=worker * config.envs_per_worker,
    )
    while True:
        waiting = perf_counter()
        number = free.recv()
        seconds[CLOCKS.index("wait")] += perf_counter() - waiting
        if number == STOP:
            return
        rollout.collect(block_of(config, worker, number).first_slot)
        filled.send(number)


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when the learner dies, by whatever signal (Linux; elsewhere the closed pipe does)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request was made
            os._exit(1)
