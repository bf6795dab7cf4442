"""One worker process as the learner holds it: how it is started, its pipes, its last words and its end.

Three pipes, none of them shared with another worker: block numbers to it (`free`), block numbers from it (`filled`), and what
it says when it fails (`words`). A block number is one byte: no message can arrive half. The learner's ends never block.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

from replay.slot_store import SharedArrays
from workers.base import WorkerSetup
from workers.processes.heartbeat import START_SECONDS, Heartbeat
from workers.processes.launcher import died_with, start_process
from workers.processes.restarts import Cause
from workers.processes.worker import STACK_SIGNAL, Task, run_worker

READ_BYTES = 1 << 16


class WorkerHandle:
    """Starts a process for `worker`.

    line: the worker's ends of further pipes, to whoever acts for it.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        worker: int,
        seed: int,
        shared: SharedArrays,
        beat: float,
        now: float,
        line: tuple[Connection, ...] = (),
    ) -> None:
        free_reader, self._free = multiprocessing.Pipe(duplex=False)
        self.filled, filled_writer = multiprocessing.Pipe(duplex=False)
        self._words, words_writer = multiprocessing.Pipe(duplex=False)
        for connection in (self.filled, self._words, words_writer):
            os.set_blocking(connection.fileno(), False)
        self.worker = worker
        self.seed = seed
        self.heartbeat = Heartbeat(setup.config.worker_timeout, beat, now)
        self.started_at = now
        self.hung_at: float | None = None
        self.silent = False  # it has closed its end
        task = Task(setup, worker, seed, shared, free_reader, filled_writer, line)
        try:
            self._process = start_process(run_worker, task, words_writer, name=f"worker-{worker}")
        finally:
            for connection in (free_reader, filled_writer, words_writer, *line):
                connection.close()  # only the worker holds them now, so its death is an end of file here
        self.pid: int = self._process.pid or 0

    def give(self, number: int) -> None:
        """Tell it that a block is free, or to STOP."""
        with contextlib.suppress(OSError):  # it died: the supervisor finds the reason
            os.write(self._free.fileno(), bytes([number]))

    def take(self) -> list[int]:
        """Numbers of the blocks it has filled since the last call."""
        numbers = _read(self.filled)
        self.silent = numbers == b""
        return list(numbers or b"")

    @property
    def exited(self) -> bool:
        return self._process.exitcode is not None

    def ask_for_stack(self, now: float) -> None:
        """Let a hanging worker write down where it is."""
        self.hung_at = now
        os.kill(self.pid, STACK_SIGNAL)

    def kill(self) -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            self._process.kill()

    def join(self, seconds: float) -> None:
        self._process.join(seconds)

    def cause(self) -> Cause:
        """Why it has exited."""
        details = (_read(self._words) or b"").decode(errors="replace").strip()
        return Cause(f"worker {self.worker} {self._reason(details)}", details, died_with(self._process))

    def _reason(self, details: str) -> str:
        exit_code = self._process.exitcode or 0
        if self.hung_at is not None:
            if not self.heartbeat.started:
                return f"hung: not one step within {START_SECONDS:.0f} s of its start"
            return f"hung: no step for {self.heartbeat.limit:.1f} s (see worker_timeout)"
        if died_with(self._process):
            return "died with the process that workers are forked from (out of memory?)"
        if exit_code == -signal.SIGKILL:
            return "was killed by SIGKILL (out of memory?)"
        if exit_code < 0:
            return f"was killed by {_signal_name(-exit_code)}"
        return f"failed: {details.splitlines()[-1]}" if details else f"died without a word, exit code {exit_code}"

    def close(self) -> None:
        """Give the descriptors back; it has exited."""
        for connection in (self._free, self.filled, self._words):
            connection.close()
        self._process.close()


def _signal_name(number: int) -> str:
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def _read(connection: Connection) -> bytes | None:
    """What there is, b"" at the end of the file, None where there is nothing yet."""
    try:
        return os.read(connection.fileno(), READ_BYTES)
    except BlockingIOError:
        return None
