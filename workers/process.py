"""A worker process: build environments and policy, then fill blocks of slots until the learner is gone or says stop."""

from __future__ import annotations

import contextlib
import faulthandler
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

STOP = 255  # instead of a block number
STACK_SIGNAL = signal.SIGUSR1
MOST_WORDS = 30_000  # bytes: fewer than any pipe holds


def run_worker(
    setup: WorkerSetup,
    worker: int,
    seed: int,
    shared: SharedArrays,
    free: Connection,
    filled: Connection,
    words: Connection,
) -> None:
    """Entry of a spawned worker. `free` brings block numbers (or STOP), `filled` takes them, a byte each; `words` takes the
    traceback of what went wrong, or at `STACK_SIGNAL` the stack of every thread."""
    faulthandler.enable(words)
    faulthandler.register(STACK_SIGNAL, words)
    exit_code = 0
    try:
        _collect_blocks(setup, worker, seed, shared, free.fileno(), filled.fileno())
    except BaseException:  # a process boundary: the learner says it
        os.write(words.fileno(), traceback.format_exc().encode()[-MOST_WORDS:])
        exit_code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code)  # at once: to take PyTorch down takes long, and threads of an environment may never end


def _collect_blocks(setup: WorkerSetup, worker: int, seed: int, shared: SharedArrays, free: int, filled: int) -> None:
    prepare_torch(threads=1)
    config = setup.config
    seconds = worker_clocks(shared)[worker]
    rollout = Rollout(
        make_vector_env(setup.env, config.envs_per_worker),
        CpuPolicy(setup.make_network(), SharedWeights(shared), seed, with_features=setup.wants_features),
        slots_of(shared, setup.contract),
        seconds,
        seed=seed,
        first_environment=worker * config.envs_per_worker,
    )
    while True:
        waiting = perf_counter()
        message = os.read(free, 1)
        seconds[CLOCKS.index("wait")] += perf_counter() - waiting
        if message in (b"", bytes([STOP])):  # the learner is gone, or says so
            rollout.env.close()
            return
        rollout.collect(block_of(config, worker, message[0]).first_slot)
        try:
            os.write(filled, message)
        except BrokenPipeError:  # the learner is gone
            return
