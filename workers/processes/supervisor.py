"""The group of worker processes, each with its own pipes and its own share of the slots, and the thread that keeps it alive.

The supervisor thread alone starts processes, hears them and ends them; the learner's threads take blocks from its queue and
give them back under its lock. A worker that fails, dies or hangs is replaced: what it had not handed over is lost, its slots go
to the new one, and those that the learner still holds follow when they are released.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from time import monotonic

from agents.networks.actor_critic import ActorCritic
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.base import Block, WorkerError, Workers, WorkerSetup, block_of
from workers.processes import launcher as children
from workers.processes.handle import WorkerHandle
from workers.processes.restarts import RestartBudget
from workers.processes.worker import STOP
from workers.rollout import CLOCKS
from workers.seeds import fresh_seed
from workers.weights import SharedWeights, Weights, weights_layout

log = logging.getLogger("springbok")

LOOK_SECONDS = 0.2  # between two looks at every worker
STACK_SECONDS = 0.5  # that a hanging worker has to write down where it is
JOIN_SECONDS = 3.0  # that workers have to end by themselves


class ProcessWorkers(Workers):
    """Worker processes, whoever acts for them."""

    def __init__(
        self, setup: WorkerSetup, layout: Mapping[str, Field], make_weights: Callable[[SharedArrays], Weights]
    ) -> None:
        super().__init__(setup, layout, make_weights)
        self._budget = RestartBudget(setup.config.max_worker_restarts)
        self._handles: list[WorkerHandle] = []
        self._held: list[set[int]] = [set() for _ in setup.seeds]  # blocks that the learner has
        self._lock = threading.Lock()  # over what is held, and over which process gets what is free
        self._filled: SimpleQueue[Block | None] = SimpleQueue()
        self._failure: WorkerError | None = None
        self._collecting = False  # before that no worker gets a block
        self._ending = False
        self._running = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor of the workers", daemon=True)

    @property
    def pids(self) -> list[int]:
        """The processes that are there now, one a worker."""
        return [handle.pid for handle in self._handles]

    def prepare(self) -> None:
        children.prepare()  # here, as what it starts ends with its thread, and other processes come from it too
        self._supervisor.start()
        self._running.wait()  # until all are started, before this thread works on what would keep that one waiting

    def start(self) -> None:
        if not self._supervisor.ident:
            self.prepare()
        with self._lock:
            self._collecting = True
            for handle in self._handles:
                self._give_what_is_free(handle.worker)

    def poll(self, timeout: float) -> list[Block]:
        blocks: list[Block | None] = []
        with contextlib.suppress(Empty):
            blocks.append(self._filled.get(timeout=0.0 if self._failure else timeout))
            while True:
                blocks.append(self._filled.get_nowait())
        if self._failure:
            raise self._failure
        return [block for block in blocks if block]

    def release(self, block: Block) -> None:
        with self._lock:
            self._held[block.worker].discard(block.number)
            self._handles[block.worker].give(block.number)

    def kill(self) -> None:
        self._ending = True
        for handle in self._handles:
            handle.kill()

    def stop(self) -> None:
        self._ending = True
        if self._supervisor.is_alive():
            self._supervisor.join()
        self.shared.close()

    def _supervise(self) -> None:
        try:
            for worker, seed in enumerate(self.setup.seeds):
                self._handles.append(self._spawn(worker, seed))
            self._running.set()
            while not self._ending:
                self._hear_until(monotonic() + LOOK_SECONDS)
                for handle in self._handles:
                    self._look_after(handle)
        except WorkerError as error:
            self._fail(error)
        except Exception as error:  # a thread's boundary: poll raises it again
            failure = WorkerError(f"workers could not be started or supervised: {error}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._filled.put(None)  # nobody waits for blocks any longer
            self._running.set()
            self._end_processes()

    def _fail(self, error: WorkerError) -> None:
        """Let `poll` raise this error, or one that came before it, and end all workers; any thread may call this."""
        self._failure = self._failure or error
        self._ending = True

    def _spawn(self, worker: int, seed: int) -> WorkerHandle:
        return WorkerHandle(self.setup, worker, seed, self.shared, self._beat(worker), monotonic())

    def _give_what_is_free(self, worker: int) -> None:
        for number in range(self.setup.config.blocks_per_worker):
            if number not in self._held[worker]:
                self._handles[worker].give(number)

    def _hear_until(self, end: float) -> None:
        """Pass on the blocks that come in until `end`."""
        while (left := end - monotonic()) > 0 and not self._ending:
            ready = wait([handle.filled for handle in self._handles if not handle.silent], left)
            for handle in self._handles:
                if handle.filled in ready:
                    self._hear(handle)

    def _hear(self, handle: WorkerHandle) -> None:
        for number in handle.take():
            with self._lock:
                self._held[handle.worker].add(number)
            self._filled.put(block_of(self.setup.config, handle.worker, number))

    def _look_after(self, handle: WorkerHandle) -> None:
        now, started = monotonic(), handle.heartbeat.started
        hangs = handle.heartbeat.hangs(self._beat(handle.worker), self._has_work(handle.worker), now)
        if self._ending:
            return
        if handle.exited:
            self._replace(handle)
        elif handle.silent or (handle.hung_at is not None and now - handle.hung_at >= STACK_SECONDS):
            handle.kill()
        elif hangs and handle.hung_at is None:
            handle.ask_for_stack(now)
        elif handle.heartbeat.started and not started:
            took = now - handle.started_at
            log.debug("worker %d (pid %d, seed %d) is at work after %.1f s", handle.worker, handle.pid, handle.seed, took)

    def _has_work(self, worker: int) -> bool:
        """Whether it has all that it needs for a step."""
        return self._collecting and len(self._held[worker]) < self.setup.config.blocks_per_worker

    def _replace(self, failed: WorkerHandle) -> None:
        """Start another process in place of one that has exited. Raises WorkerError where there were too many."""
        self._hear(failed)  # blocks that it has handed over are whole
        worker, cause = failed.worker, failed.cause()
        allowed = self._budget.allows(cause, monotonic())
        log.warning("%s (failure %d within an hour, %d allowed)", cause.reason, self._budget.used, self._budget.most)
        if cause.details:
            log.debug("%s", cause.details)
        if not allowed:
            raise WorkerError(self._budget.last_words())
        self.restarts += 1  # before anybody can see the new process
        successor = self._spawn(worker, fresh_seed(self.setup.seeds, self.restarts))
        with self._lock:
            failed.close()
            self._handles[worker] = successor
            if self._collecting:
                self._give_what_is_free(worker)

    def _beat(self, worker: int) -> float:
        """Seconds that this worker has spent in steps so far."""
        return float(self.seconds[worker, : CLOCKS.index("wait")].sum())

    def _end_processes(self) -> None:
        for handle in self._handles:
            if handle.heartbeat.started:
                handle.give(STOP)
            else:
                handle.kill()  # it would build its environments first
        end = monotonic() + JOIN_SECONDS
        for handle in self._handles:
            handle.join(max(0.0, end - monotonic()))
            if not handle.exited:
                handle.kill()
                handle.join(JOIN_SECONDS)
        with self._lock:
            for handle in self._handles:
                if handle.exited:
                    handle.close()


class CpuWorkers(ProcessWorkers):
    """The cpu kind: each process acts with its own copy of the policy."""

    def __init__(self, setup: WorkerSetup, network: ActorCritic) -> None:
        super().__init__(setup, weights_layout(network), SharedWeights)
