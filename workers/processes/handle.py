"""The learner's side of one worker process: its pipes, its state and the cause of its end.

Three pipes connect a worker with the learner, and no worker shares one with another. `free` carries numbers of free slot blocks
to the worker, `filled` carries numbers of filled blocks back, and `errors` carries a traceback if the worker fails. A block
number is one byte, so a worker that is killed cannot leave half a message behind. The learner's ends never block.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection

from workers.processes.heartbeat import Heartbeat
from workers.processes.launcher import died_with, start_process
from workers.processes.restarts import Cause
from workers.processes.worker import STACK_SIGNAL, WorkerTask, run_worker

READ_BYTES = 1 << 16


class Handle(ABC):
    """One worker, as its supervisor uses it.

    Args:
        worker: its index in the run.
        seed: of its environments and its policy.
        heartbeat: tells whether it hangs.

    Attributes:
        filled: becomes readable when blocks were filled or the worker has ended.
        pid: its process id; 0 while it is unknown.
        hung_since: when its stack was asked for, in seconds of the monotonic clock; None for a worker that does not hang.
        disconnected: whether it hands over no more blocks.
    """

    filled: Connection
    pid: int = 0

    def __init__(self, worker: int, seed: int, heartbeat: Heartbeat) -> None:
        self.worker = worker
        self.seed = seed
        self.heartbeat = heartbeat
        self.hung_since: float | None = None
        self.disconnected = False

    @abstractmethod
    def send(self, number: int) -> None:
        """Send the number of a free block, or STOP."""

    def receive(self) -> list[int]:
        """Return the numbers of the blocks that were filled since the last call."""
        numbers = _read(self.filled)
        self.disconnected = numbers == b""
        return list(numbers or b"")

    @property
    @abstractmethod
    def exited(self) -> bool:
        """Whether the worker has ended. It then writes into no slot."""

    @abstractmethod
    def ask_for_stack(self, now: float) -> None:
        """Let a hanging worker say where it hangs, if it can. now: seconds of the monotonic clock."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker at once."""

    @abstractmethod
    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the worker's end."""

    @abstractmethod
    def cause(self) -> Cause:
        """Return why the worker has exited."""

    @abstractmethod
    def close(self) -> None:
        """Close the learner's ends of the pipes; the worker must have exited."""


class WorkerHandle(Handle):
    """Starts a process for `task` and closes the task's `policy_pipes` here. Raises OSError if it cannot be started."""

    def __init__(self, task: WorkerTask, heartbeat: Heartbeat) -> None:
        super().__init__(task.worker, task.seed, heartbeat)
        free_reader, self._free = multiprocessing.Pipe(duplex=False)
        self.filled, filled_writer = multiprocessing.Pipe(duplex=False)
        self._errors, errors_writer = multiprocessing.Pipe(duplex=False)
        # The worker's end of `errors` does not block either: a worker must not wait for a learner that is busy.
        for connection in (self.filled, self._errors, errors_writer):
            os.set_blocking(connection.fileno(), False)
        worker_ends = (free_reader, filled_writer, errors_writer)
        try:
            self._process = start_process(run_worker, task, *worker_ends, name=f"worker-{task.worker}")
        finally:
            # Only the worker may hold its ends: then its death is an end of file here, and the learner's death one there.
            for connection in (*worker_ends, *task.policy_pipes):
                connection.close()
        self.pid = self._process.pid or 0

    def send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the worker died, and the supervisor finds out why
            os.write(self._free.fileno(), bytes([number]))

    @property
    def exited(self) -> bool:
        return self._process.exitcode is not None

    def ask_for_stack(self, now: float) -> None:
        """Let the worker write the stack of each of its threads to `errors`."""
        self.hung_since = now
        with contextlib.suppress(ProcessLookupError):  # it has exited since it was found hanging
            os.kill(self.pid, STACK_SIGNAL)

    def kill(self) -> None:
        with contextlib.suppress(ValueError):  # closed by another thread
            self._process.kill()

    def join(self, seconds: float) -> None:
        self._process.join(seconds)

    def cause(self) -> Cause:
        details = (_read(self._errors) or b"").decode(errors="replace").strip()
        return Cause(f"worker {self.worker} {self._reason(details)}", details, died_with(self._process))

    def _reason(self, details: str) -> str:
        exit_code = self._process.exitcode or 0
        if self.hung_since is not None:
            if not self.heartbeat.stepped:
                return f"hung: no step within {self.heartbeat.limit:.0f} s of its start"
            return f"hung: no step for {self.heartbeat.limit:.1f} s (see worker_timeout)"
        if died_with(self._process):
            return "died with the fork server (out of memory?)"
        if exit_code == errno.ENOMEM:
            return "failed: out of memory when it started"
        return exit_reason(exit_code, details.splitlines()[-1] if details else "")

    def close(self) -> None:
        for connection in (self._free, self.filled, self._errors):
            connection.close()
        self._process.close()


def _read(connection: Connection) -> bytes | None:
    """Return the bytes that have arrived, b"" at the end of the file, or None if there are none yet."""
    try:
        return os.read(connection.fileno(), READ_BYTES)
    except BlockingIOError:
        return None


def exit_reason(exit_code: int, said: str) -> str:
    """Return why a process ended, as the end of a sentence about it.

    exit_code: the negative number of the signal if one killed it. said: its last words, or empty.
    """
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    if exit_code < 0:
        return f"was killed by {_signal_name(-exit_code)}"
    return f"failed: {said}" if said else f"exited with code {exit_code} and no message"


def _signal_name(number: int) -> str:
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")
