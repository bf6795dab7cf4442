"""The learner's side of one Ray actor. It behaves like a worker process, so `ProcessWorkers` supervises both.

An actor has at most one `collect` call at a time, and only while it owns a free slot block; without one it waits. The small
report of a call arrives first, and the next call leaves at once, with the newest weights. The trajectories follow and are
copied into the slots. Then the block's number goes through a pipe, as that of a worker process does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

import numpy as np
import ray

from replay.trajectory import Arrays
from workers.base import Block, WorkerSetup, block_of
from workers.clocks import CLOCKS
from workers.cluster.actor import ActorLocation, CallReport, make_actor
from workers.cluster.connection import REASON, node_is_alive
from workers.processes.handle import Handle
from workers.processes.heartbeat import Heartbeat
from workers.processes.restarts import Cause
from workers.processes.worker import STOP

Event = Callable[[], None]
Newest = Callable[[], tuple[ray.ObjectRef[Any], int]]
"""Returns the newest weights in Ray's object store, and their version."""


class ActorHandle(Handle):
    """Starts an actor. One thread of `RayWorkers` runs its events; the supervisor calls the methods of `Handle`.

    Args:
        setup: of the run.
        worker, seed, heartbeat: see `Handle`.
        slots: the arena's arrays.
        seconds: float64 `[len(CLOCKS)]`, the worker's clocks in the arena.
        newest: returns the newest weights; called by events only.
        events: queue of functions that the thread runs once the cluster has answered.

    Attributes:
        placed: whether the actor runs. The cluster may have to wait for a node first.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        seed: int,
        heartbeat: Heartbeat,
        *,
        slots: Arrays,
        seconds: np.ndarray,
        newest: Newest,
        events: SimpleQueue[Event | None],
    ) -> None:
        super().__init__(worker, seed, heartbeat)
        self._setup, self._slots, self._seconds, self._newest, self._events = setup, slots, seconds, newest, events
        self.filled, self._filler = multiprocessing.Pipe(duplex=False)
        os.set_blocking(self.filled.fileno(), False)
        self.placed = False
        self._built = self._calling = False
        self._idle_since: float | None = None  # seconds of the monotonic clock
        self._free: deque[int] = deque()
        self._node = ""
        self._cause: Cause | None = None
        self._exited = threading.Event()
        self._lock = threading.Lock()  # guards the slots: none is written after the actor's end
        self._actor = make_actor(setup, worker, seed)
        self._when_done(self._actor.location.remote(), self._have_location)
        self._when_done(self._actor.build.remote(), self._have_built)

    def send(self, number: int) -> None:
        self._events.put(partial(self._take, number))

    @property
    def exited(self) -> bool:
        return self._exited.is_set()

    def ask_for_stack(self, now: float) -> None:
        """An actor that hangs answers no call, so it cannot say where."""
        self.hung_since = now

    def kill(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is dead already, or the cluster is gone
            ray.kill(self._actor)
        self._end()

    def join(self, seconds: float) -> None:
        self._exited.wait(seconds)

    def cause(self) -> Cause:
        if self.hung_since is not None:
            reason = f"worker {self.worker} hung: no trajectories for {self.heartbeat.limit:.0f} s (see worker_timeout)"
            return Cause(reason)
        return self._cause or Cause(f"worker {self.worker} was killed")

    def close(self) -> None:
        self._end()
        self.filled.close()

    def _when_done(self, reference: ray.ObjectRef[Any], act: Callable[[Any], None]) -> None:
        """Let `act` run as an event with the value of a reference, or fail with its error."""
        reference.future().add_done_callback(lambda future: self._events.put(partial(self._done, act, future)))

    def _done(self, act: Callable[[Any], None], future: Future[Any]) -> None:
        if self.exited:
            return
        if error := future.exception():
            self._fail(self._cause_of(error))
        else:
            act(future.result())

    def _have_location(self, location: ActorLocation) -> None:
        self._node, self.pid, self.placed = location.node, location.pid, True

    def _have_built(self, report: CallReport) -> None:
        self._built = True
        self._have_report(report)

    def _take(self, number: int) -> None:
        if number != STOP:
            self._free.append(number)
            self._call()
        elif not self.placed:
            self.kill()  # it has no environments, and may wait for a node for ever
        elif not self.exited:
            # The actor's calls run in order, so it closes its environments after the trajectories that it collects now.
            self._actor.close.remote().future().add_done_callback(lambda _: self._events.put(self.kill))

    def _call(self) -> None:
        """Let the actor fill the next free block if it does not fill one now."""
        if not self._built or self._calling or self.exited:
            return
        if not self._free:
            self._idle_since = self._idle_since or monotonic()
            return
        if self._idle_since:
            self._seconds[CLOCKS.index("wait")] += monotonic() - self._idle_since
            self._idle_since = None
        self._calling = True
        block = block_of(self._setup.config, self.worker, self._free.popleft())
        weights, version = self._newest()
        report, trajectories = self._actor.collect.options(num_returns=2).remote(weights, version)
        self._when_done(report, self._have_report)
        self._when_done(trajectories, partial(self._have_block, block))

    def _have_report(self, report: CallReport) -> None:
        self._calling = False
        if report.error:
            self._fail(Cause(f"worker {self.worker} failed: {report.error.strip().splitlines()[-1]}", report.error.strip()))
            return
        # The report of `build` has no clocks.
        if len(report.seconds):
            self._seconds += report.seconds
        self._call()

    def _have_block(self, block: Block, trajectories: Arrays) -> None:
        """Copy `[N, *shape]` each field into the block's slots and hand it over."""
        with self._lock:
            if self._filler.closed or not trajectories:
                return
            for name, values in trajectories.items():
                self._slots[name][block.first_slot : block.first_slot + block.slot_count] = values
            os.write(self._filler.fileno(), bytes([block.number]))

    def _cause_of(self, error: BaseException) -> Cause:
        """Why a call failed: the actor, its node, or the network between."""
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if self._node and not node_is_alive(self._node):
            return Cause(f"worker {self.worker} was lost with its node {self._node[:8]}", str(error), int(self._node, 16))
        return Cause(f"worker {self.worker} was lost: {' '.join(lines[-1].split())[:REASON]}", str(error))

    def _fail(self, cause: Cause) -> None:
        """Keep the first cause and end the actor, so that it writes nothing more."""
        self._cause = self._cause or cause
        self.kill()

    def _end(self) -> None:
        self._exited.set()
        with self._lock:
            if not self._filler.closed:
                self._filler.close()  # the supervisor sees the end of the file
