"""The thread that lets one policy act for all workers: it collects requests, acts for all of them at once, and answers each.

Each worker process has its own two pipes, and this thread alone closes the learner's ends of them. A worker that is killed or
stopped, at any instruction, makes no other worker wait.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import monotonic, sleep

from replay.slot_store import SharedArrays
from workers.base import WorkerConfig
from workers.central.device_policy import DevicePolicy
from workers.central.exchange import ACTIONS, FIRST, FRAME, STATE, VERSION, WITH_STATE, exchange_of

IDLE_SECONDS = 0.1  # until the thread looks whether it has to stop, or a worker has joined
LINGER_SECONDS = 0.00025  # collects requests of the same moment; a longer wait costs workers more than larger batches save
STALL_SECONDS = 0.5
READ_BYTES = 256


@dataclass(frozen=True)
class Line:
    """The learner's ends of one worker process's pipes. One byte, the number of a group, asks; the same byte answers."""

    worker: int
    asks: Connection
    answers: Connection


class InferenceServer:
    """Acts with `policy` for every worker that is connected. on_failure: called with the exception, in this thread."""

    def __init__(
        self, policy: DevicePolicy, shared: SharedArrays, config: WorkerConfig, on_failure: Callable[[Exception], None]
    ) -> None:
        self._policy = policy
        self._on_failure = on_failure
        self._exchange = [
            [exchange_of(shared, worker, group) for group in range(config.groups)] for worker in range(config.worker_count)
        ]
        self._environments = [
            [config.environments_of(worker, group) for group in range(config.groups)] for worker in range(config.worker_count)
        ]
        self._selector = selectors.DefaultSelector()
        self._joining: SimpleQueue[Line] = SimpleQueue()
        self._lines: list[Line] = []
        self._stopping = threading.Event()
        self._last_look = monotonic()
        self._thread = threading.Thread(target=self._serve, name="inference", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def connect(self, line: Line) -> None:
        """Serve another worker process from now on; its pipes are the server's. Any thread may call this."""
        self._joining.put(line)

    @property
    def stalls(self) -> bool:
        """Whether no answer is to be expected at present, so that a worker that waits is not to blame."""
        return monotonic() - self._last_look > STALL_SECONDS

    def stop(self) -> None:
        """End the thread; workers find their pipes closed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._stopping.is_set():
                self._last_look = monotonic()
                while not self._joining.empty():
                    self._admit(self._joining.get())
                if asking := self._gather():
                    self._answer(asking)
        except Exception as error:  # a thread's boundary
            self._on_failure(error)
        finally:
            # Lines that were not admitted yet are closed too, or their workers would wait for answers until they are killed.
            while not self._joining.empty():
                self._admit(self._joining.get())
            for line in list(self._lines):
                self._dismiss(line)
            self._selector.close()

    def _admit(self, line: Line) -> None:
        for other in [other for other in self._lines if other.worker == line.worker]:
            self._dismiss(other)  # its process has exited; what it still asked for must not reach the new one
        # A worker that is stopped and reads no answers must not block this thread.
        os.set_blocking(line.answers.fileno(), False)
        self._lines.append(line)
        self._selector.register(line.asks, selectors.EVENT_READ, line)

    def _dismiss(self, line: Line) -> None:
        self._selector.unregister(line.asks)
        self._lines.remove(line)
        line.asks.close()
        line.answers.close()

    def _gather(self) -> list[tuple[Line, int]]:
        """Return the groups that ask: at once if every worker has one that asks, otherwise a moment after the first."""
        asking = self._hear(IDLE_SECONDS)
        if asking and len({line.worker for line, _ in asking}) < len(self._lines):
            sleep(LINGER_SECONDS)  # a selector waits for whole milliseconds
            asking += self._hear(0.0)
        return asking

    def _hear(self, timeout: float) -> list[tuple[Line, int]]:
        asking: list[tuple[Line, int]] = []
        for key, _ in self._selector.select(timeout):
            line: Line = key.data
            if groups := os.read(line.asks.fileno(), READ_BYTES):
                asking += [(line, group) for group in groups]
            else:
                self._dismiss(line)  # its worker is gone
        return asking

    def _answer(self, asking: list[tuple[Line, int]]) -> None:
        exchanges = [self._exchange[line.worker][group] for line, group in asking]
        acted = self._policy.act(
            [exchange[FRAME] for exchange in exchanges],
            [exchange[FIRST] for exchange in exchanges],
            [self._environments[line.worker][group] for line, group in asking],
            [WITH_STATE in exchange and bool(exchange[WITH_STATE][0]) for exchange in exchanges],
        )
        answer = {ACTIONS: acted.actions, **acted.fields}
        first = 0
        for (line, group), exchange in zip(asking, exchanges, strict=True):
            rows = slice(first, first + len(exchange[FIRST]))
            first = rows.stop
            for name, array in answer.items():
                exchange[name][:] = array[rows]
            if acted.state is not None and exchange[WITH_STATE][0]:
                exchange[STATE][:] = acted.state[rows]
            exchange[VERSION][:] = self._policy.version
            # The byte follows the data, because it gives the group its part of the exchange back.
            with contextlib.suppress(OSError):  # its worker is gone
                os.write(line.answers.fileno(), bytes([group]))
