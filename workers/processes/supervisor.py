"""The worker processes of a run, and the thread that supervises them.

Only the supervisor thread starts worker processes and reads from their pipes. It also ends them; `kill` alone may do so from
elsewhere. The learner's threads take filled blocks from its queue and release them under its lock. A worker that fails, dies or
hangs is replaced. Blocks that it had not handed over are lost, and their slots go to the new worker at once. Blocks that the
learner holds go to the new worker when they are released.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from time import monotonic

from agents.networks.base import FeatureNetwork
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.base import Block, WorkerError, Workers, WorkerSetup, block_of
from workers.clocks import busy_seconds
from workers.processes import launcher
from workers.processes.handle import Handle, WorkerHandle
from workers.processes.heartbeat import Heartbeat, start_timeout
from workers.processes.restarts import RestartBudget
from workers.processes.worker import ENDING, ENDING_LAYOUT, STOP, WorkerTask
from workers.seeds import fresh_seed
from workers.served.counts import FINISHED, LAYOUT, SERVED, read_counts
from workers.served.histograms import Histogram, HistogramReader
from workers.weights import SharedWeights, Weights, weights_layout
from wrappers import describe_env

log = logging.getLogger("springbok")

CHECK_SECONDS = 0.2  # between two checks of all workers
STACK_SECONDS = 0.5  # for a hanging worker to write its stack before it is killed
JOIN_SECONDS = 3.0  # for workers to end by themselves
CLOSE_SECONDS = 30.0  # the same, at least, if they close their environments first


class ProcessWorkers(Workers):
    """Worker processes; subclasses decide which policy acts for them."""

    def __init__(
        self, setup: WorkerSetup, layout: Mapping[str, Field], make_weights: Callable[[SharedArrays], Weights]
    ) -> None:
        super().__init__(setup, {**layout, **ENDING_LAYOUT}, make_weights)
        self._budget = RestartBudget(setup.config.max_worker_restarts)
        self._handles: list[Handle] = []
        description = describe_env(setup.env)
        self._start_timeout = start_timeout(setup.config.environments, description.start_seconds)
        # Episodes of the same length end together, and the worker resets its environments one after the other in one step.
        self._timeout = max(setup.config.worker_timeout, setup.config.envs_per_worker * description.reset_seconds)
        self._closes = description.needs_close
        self._join_seconds = JOIN_SECONDS
        if self._closes:  # a worker may make all its environments, or reset them, before it reads that the run ends
            self._join_seconds = max(CLOSE_SECONDS, setup.config.envs_per_worker * description.start_seconds)
        self._held: list[set[int]] = [set() for _ in setup.seeds]  # numbers of the blocks that the learner holds
        # Guards `_held` and the handle that a free block is sent to, which must not be replaced in between.
        self._lock = threading.Lock()
        self._filled: SimpleQueue[Block | None] = SimpleQueue()
        self._failure: WorkerError | None = None
        self._collecting = False  # no worker gets a block before `start`
        self._ending = False
        self._running = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor of the workers", daemon=True)

    @property
    def pids(self) -> list[int]:
        """Process ids of the present workers, one for each worker."""
        return [handle.pid for handle in self._handles]

    def prepare(self) -> None:
        # The fork server dies with the thread that starts it, so the calling thread starts it instead of the supervisor.
        self._start_launcher()
        self._supervisor.start()
        # Wait until all processes are started: the caller's work would otherwise keep the supervisor from running.
        self._running.wait()

    def start(self) -> None:
        if not self._supervisor.ident:
            self.prepare()
        # With the lock, a worker that is replaced at this moment gets each of its blocks once.
        with self._lock:
            self._collecting = True
            for handle in self._handles:
                self._send_free_blocks(handle.worker)

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
            self._handles[block.worker].send(block.number)

    def kill(self) -> None:
        # The flag precedes the kills, so that the supervisor replaces none of these workers.
        self._ending = True
        for handle in self._handles:
            handle.kill()

    def stop(self) -> None:
        self._ending = True
        if self._supervisor.is_alive():
            self._supervisor.join()
        self.shared.close()

    def _start_launcher(self) -> None:
        """Start what starts the processes."""
        launcher.start_fork_server()

    def _supervise(self) -> None:
        try:
            for worker, seed in enumerate(self.setup.seeds):
                self._handles.append(self._spawn(worker, seed))
            self._running.set()
            while not self._ending:
                self._receive_until(monotonic() + CHECK_SECONDS)
                for handle in self._handles:
                    self._check(handle)
        except WorkerError as error:
            self._fail(error)
        except Exception as error:  # the boundary of the thread: `poll` raises the error
            failure = WorkerError(f"workers could not be started or supervised: {error}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._filled.put(None)  # wakes a `poll` that waits for blocks
            # If the start failed, `prepare` would otherwise wait for ever.
            self._running.set()
            self._end_processes()

    def _fail(self, error: WorkerError) -> None:
        """End all workers and let `poll` raise `error`, or the first one of several. Any thread may call this."""
        self._failure = self._failure or error
        self._ending = True

    def _spawn(self, worker: int, seed: int, policy_pipes: tuple[Connection, ...] = ()) -> Handle:
        """Start the process of a worker. policy_pipes: see `WorkerTask`."""
        heartbeat = Heartbeat(self._busy_seconds(worker), monotonic(), timeout=self._timeout, start_timeout=self._start_timeout)
        return WorkerHandle(WorkerTask(self.setup, worker, seed, self.shared, policy_pipes), heartbeat)

    def _send_free_blocks(self, worker: int) -> None:
        for number in range(self.setup.config.blocks_per_worker):
            if number not in self._held[worker]:
                self._handles[worker].send(number)

    def _receive_until(self, end: float) -> None:
        """Queue the blocks that arrive until `end`, in seconds of the monotonic clock."""
        while (left := end - monotonic()) > 0 and not self._ending:
            ready = wait([handle.filled for handle in self._handles if not handle.disconnected], left)
            for handle in self._handles:
                if handle.filled in ready:
                    self._receive(handle)

    def _receive(self, handle: Handle) -> None:
        for number in handle.receive():
            # The block counts as held before it is queued, because the learner may release it at once.
            with self._lock:
                self._held[handle.worker].add(number)
            self._filled.put(block_of(self.setup.config, handle.worker, number))

    def _check(self, handle: Handle) -> None:
        """Replace a worker that has exited, and kill one that hangs."""
        now, had_stepped = monotonic(), handle.heartbeat.stepped
        hangs = handle.heartbeat.hangs(self._busy_seconds(handle.worker), self._has_work(handle.worker), now)
        if self._ending:
            return
        if handle.exited:
            self._replace(handle)
        elif handle.disconnected or (handle.hung_since is not None and now - handle.hung_since >= STACK_SECONDS):
            handle.kill()  # `exited` becomes true by a later check
        elif hangs and handle.hung_since is None:
            handle.ask_for_stack(now)
        elif handle.heartbeat.stepped and not had_stepped:
            seconds = now - handle.heartbeat.started_at
            log.debug("worker %d (pid %d, seed %d) is at work after %.1f s", handle.worker, handle.pid, handle.seed, seconds)

    def _has_work(self, worker: int) -> bool:
        """Return whether the worker has everything that its next step needs."""
        return self._collecting and len(self._held[worker]) < self.setup.config.blocks_per_worker

    def _replace(self, failed: Handle) -> None:
        """Start another process in place of one that has exited. Raises WorkerError if there were too many failures."""
        self._receive(failed)  # blocks that it handed over before it died are complete
        worker, cause = failed.worker, failed.cause()
        allowed = self._budget.allows(cause, monotonic())
        log.warning("%s (failure %d within an hour, %d allowed)", cause.reason, self._budget.used, self._budget.most)
        if cause.details:
            log.debug("%s", cause.details)
        if not allowed:
            raise WorkerError(self._budget.message())
        self.restarts += 1  # before the new process can be seen, so that a reader of both never misses a restart
        # The process starts outside the lock, so that the learner can release blocks meanwhile.
        successor = self._spawn(worker, fresh_seed(self.setup.seeds, self.restarts))
        with self._lock:
            failed.close()
            self._handles[worker] = successor
            if self._collecting:
                self._send_free_blocks(worker)

    def _busy_seconds(self, worker: int) -> float:
        """Seconds that the worker has spent in steps so far, restarts included."""
        return busy_seconds(self.seconds[worker])

    def _end_processes(self) -> None:
        self.shared.arrays[ENDING][0] = True
        for handle in self._handles:
            # A worker that has not stepped may read STOP only after it has built its environments.
            if handle.hung_since is None and (handle.heartbeat.stepped or self._closes):
                handle.send(STOP)
            else:
                handle.kill()
        end = monotonic() + self._join_seconds
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

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        super().__init__(setup, weights_layout(network), SharedWeights)


class ServedWorkers(ProcessWorkers):
    """The served kind: the environments are clients, and one process acts for all of them."""

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        super().__init__(setup, {**weights_layout(network), **LAYOUT}, SharedWeights)
        self._histograms = HistogramReader(self.shared.arrays)

    def metrics(self) -> dict[str, float]:
        return read_counts(self.shared.arrays[SERVED])

    def announce_end(self) -> None:
        self.shared.arrays[FINISHED][0] = True

    def histograms(self) -> dict[str, Histogram]:
        return self._histograms.read()
