"""How a run's processes start, seen from the one that starts them. `workers/processes/fork_server.py` forks them on Linux.

Elsewhere every process is spawned and imports for itself.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from workers.processes.fork_server import NUMBER, PR_SET_PDEATHSIG, Request, run_fork_server

START_SECONDS = 120.0  # seconds: a fork server that was spawned imports PyTorch first

BEFORE_ALL_ELSE = """
import ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the learner decides
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({request}, signal.SIGKILL)
    if os.getppid() != {parent}:
        os._exit(1)
"""


class StartedProcess(Protocol):
    """A process that was started; what `multiprocessing.Process` offers of it."""

    @property
    def pid(self) -> int | None:
        """Its id."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs, minus the signal's number where one killed it."""

    def kill(self) -> None:
        """SIGKILL. Raises ValueError after `close`."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""

    def close(self) -> None:
        """Give back what is held of a process that has ended."""


def died_with(child: StartedProcess) -> int | None:
    """Which process's death ended this child, one that others were forked from too; None where it lives or died by itself."""
    return child.died_with if isinstance(child, ForkedProcess) else None


def start_fork_server() -> None:
    """Start the fork server if none is there, and return at once. On Linux it dies with the thread that calls this."""
    if sys.platform == "linux":
        with _lock:
            _running_fork_server()


def start_process(function: Callable[..., None], *arguments: Any, name: str) -> StartedProcess:
    """Call `function` in a new process that Ctrl-C does not reach and that dies with this one. Raises OSError.

    function, arguments: found by name or plain data, but for `SharedArrays` and `Connection`s, which are duplicated; the caller
    closes its own. What the function has to end, it ends by `os._exit`: nothing is cleaned up behind it.
    """
    if sys.platform != "linux":
        process = multiprocessing.get_context("spawn").Process(
            target=Entry(), args=(function, *arguments), name=name, daemon=True
        )
        process.start()
        return process
    request = Request(function, arguments, name)
    with _lock:
        try:
            return _running_fork_server().fork(request)
        except ForkServerGone:
            return _running_fork_server().fork(request)


class Entry:
    """Calls what it is given; unpickled in a spawned process, it first asks the kernel to end that process with its parent.

    A spawned process unpickles its target before its arguments, and ours take seconds: they import PyTorch. A parent that dies
    meanwhile must not leave it behind, nor Ctrl-C end it. Elsewhere than on Linux it ends when it finds its pipes closed.
    """

    def __call__(self, function: Callable[..., None], *arguments: object) -> None:
        function(*arguments)

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        code = BEFORE_ALL_ELSE.format(request=PR_SET_PDEATHSIG, parent=os.getpid())
        return eval, (f"exec({code!r}, {{}}) or __import__('operator').call",)


class ForkServerGone(OSError):
    """The fork server has ended, or ends just now."""


class ForkServer:
    """The parent's side."""

    def __init__(self) -> None:
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Early it is forked itself and has all that is imported; beside other threads, whose locks it would inherit, spawned.
        context = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=Entry(), args=(run_fork_server, requests, os.getpid()), name="fork-server", daemon=True
        )
        try:
            self._process.start()
        except OSError:
            self._requests.close()
            raise
        finally:
            requests.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def runs(self) -> bool:
        return self._process.exitcode is None

    def fork(self, request: Request) -> ForkedProcess:
        """Raises ForkServerGone, or OSError where it could not fork."""
        said, says = os.pipe()
        try:
            socket.send_fds(self._requests, [request.packed], [says, *request.descriptors])
        except OSError as error:
            os.close(said)
            self.end()
            raise ForkServerGone from error
        finally:
            os.close(says)
        try:
            return ForkedProcess(said, self.pid)
        except ForkServerGone:
            self.end()
            raise

    def end(self) -> None:
        """Kill it, and with it all that it has forked."""
        self._process.kill()
        self._process.join()


_lock = threading.Lock()
_fork_server: ForkServer | None = None


def _running_fork_server() -> ForkServer:
    """The one of this process, a new one where it has died; under the lock."""
    global _fork_server
    if not _fork_server:
        atexit.register(_end_fork_server)  # before multiprocessing waits for it, which asks by a signal that it ignores
    if not _fork_server or not _fork_server.runs:
        _fork_server = ForkServer()
    return _fork_server


def _end_fork_server() -> None:
    if _fork_server:
        _fork_server.end()


class ForkedProcess:
    """A `StartedProcess` of the fork server's. said: where that one writes the process's id, and in the end the exit code.

    died_with: the fork server's id, once `exitcode` has found that this process died because the fork server did.
    """

    def __init__(self, said: int, fork_server: int) -> None:
        self._said = said
        self._fork_server = fork_server
        self.died_with: int | None = None
        self._exitcode: int | None = None
        self.pid = (self._receive() or 0) if wait([said], START_SECONDS) else 0
        if self.pid <= 0:
            os.close(said)
            if self.pid:
                raise OSError(-self.pid, os.strerror(-self.pid))
            raise ForkServerGone("the process that forks the others has ended, or hangs")
        os.set_blocking(said, False)

    @property
    def exitcode(self) -> int | None:
        if self._exitcode is None:
            try:
                told = self._receive()
            except BlockingIOError:
                return None
            self.died_with = self._fork_server if told is None else None
            self._exitcode = -signal.SIGKILL if told is None else told
        return self._exitcode

    def kill(self) -> None:
        if self._said < 0:
            raise ValueError("this process is closed")
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        if self._exitcode is None:
            wait([self._said], timeout)

    def close(self) -> None:
        if self._said >= 0:
            os.close(self._said)
            self._said = -1

    def _receive(self) -> int | None:
        """A number, None where the fork server has died. Raises BlockingIOError while nothing was said."""
        said = os.read(self._said, NUMBER.size)
        return int(NUMBER.unpack(said)[0]) if said else None
