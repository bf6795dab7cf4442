"""Starts the run's processes.

On Linux the fork server (`workers/processes/fork_server.py`) forks them. Elsewhere each one is spawned and imports PyTorch for
itself.
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
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from workers.processes.fork_server import NUMBER, ForkRequest, run_fork_server
from wrappers.answering import rest

START_SECONDS = 120.0  # for a process id to arrive; a fork server that was spawned imports PyTorch first


class StartedProcess(Protocol):
    """A process that was started; a part of the interface of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None:
        """Process id."""

    @property
    def exitcode(self) -> int | None:
        """None while the process runs; the negative number of the signal if one killed it."""

    def kill(self) -> None:
        """Send SIGKILL. Raises ValueError after `close`."""

    def join(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for the end of the process."""

    def close(self) -> None:
        """Release the resources of a process that has ended."""


def died_with(process: StartedProcess) -> int | None:
    """Return the id of the fork server whose death ended the process; None if it runs or ended by itself."""
    return process.died_with if isinstance(process, ForkedProcess) else None


def start_fork_server() -> None:
    """On Linux: start the fork server unless it runs, and return at once. It dies with the thread that calls this.

    Elsewhere nothing happens.
    """
    if sys.platform == "linux":
        with _lock:
            _running_fork_server()


def start_process(function: Callable[..., None], *arguments: Any, name: str) -> StartedProcess:
    """Call a function in a new process that Ctrl-C does not reach and that dies with this one.

    Nothing is cleaned up after the function, so it ends its process by `os._exit`.

    Args:
        function: a function of a module.
        arguments: plain data, `SharedArrays` and `Connection`s. The last two are duplicated; the caller closes its own.
        name: the name that `ps` shows.

    Raises OSError if the process cannot be started.
    """
    if sys.platform != "linux":
        return _start("spawn", function, arguments, name)
    request = ForkRequest(function, arguments, name)
    with _lock:
        try:
            return _running_fork_server().fork(request)
        except ForkServerGone:
            # The old fork server may have died unnoticed since its last request, so a new one gets one more try.
            return _running_fork_server().fork(request)


def start_program(function: Callable[..., None], *arguments: Any, name: str) -> StartedProcess:
    """Call a function in a new process that imports PyTorch itself, so that it may use a GPU and start processes of its own.

    Ctrl-C does not reach it. It calls `die_with_parent` itself. arguments: plain data and `Connection`s, which are duplicated.
    Raises OSError if the process cannot be started.
    """
    return _start("spawn", function, arguments, name, daemon=False)


def _start(
    method: str, function: Callable[..., None], arguments: tuple[Any, ...], name: str, *, daemon: bool = True
) -> BaseProcess:
    """Start a process in which Ctrl-C is blocked from the first instruction on.

    method: see `multiprocessing`. daemon: whether the process ends with this one.

    Ctrl-C reaches every process of a terminal, but the learner decides what it means. A new process inherits the signal mask of
    the thread that starts it, so it is protected while it imports modules too.
    """
    if method == "spawn":
        # Spawning starts this process of the standard library, which unblocks SIGINT here. So it must run beforehand.
        resource_tracker.ensure_running()
    process: BaseProcess = multiprocessing.get_context(method).Process(  # type: ignore[attr-defined]
        target=_run, args=(function, arguments), name=name, daemon=daemon
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process


def _run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run the function of a started process. Processes that the fork server forks inherit what is set here."""
    # The standard library lets no daemon start processes, but environments may. To its parent this process stays a daemon.
    multiprocessing.current_process().daemon = False
    function(*arguments)


class ForkServerGone(OSError):
    """The fork server has died or does not answer."""


class ForkServer:
    """This process's side of a fork server, which it starts. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        # This type of socket keeps requests apart and also reports the end of the connection.
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A forked process has everything that is imported here. But other threads may hold locks, and it would inherit them
        # locked for ever; then the fork server is spawned and imports PyTorch for itself.
        rest()
        method = "fork" if threading.active_count() == 1 else "spawn"
        try:
            self._process = _start(method, run_fork_server, (requests, os.getpid()), "fork-server")
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

    def fork(self, request: ForkRequest) -> ForkedProcess:
        """Return a new process. Raises ForkServerGone, or OSError if the fork server cannot fork."""
        status, status_writer = os.pipe()
        try:
            socket.send_fds(self._requests, [request.pickled], [status_writer, *request.descriptors])
        except OSError as error:
            os.close(status)
            self.end()
            raise ForkServerGone from error
        finally:
            os.close(status_writer)  # only the fork server holds this end, so its death is an end of file here
        try:
            return ForkedProcess(status, self.pid)
        except ForkServerGone:
            self.end()
            raise

    def end(self) -> None:
        """Kill the fork server, and with it all processes that it has forked."""
        self._process.kill()
        self._process.join()


_lock = threading.Lock()  # guards `_fork_server`
_fork_server: ForkServer | None = None


def _running_fork_server() -> ForkServer:
    """Return the fork server of this process; starts another one if it has died. The caller holds the lock."""
    global _fork_server
    if not _fork_server:
        # At exit multiprocessing sends its daemons SIGTERM and waits. The fork server ignores SIGTERM, so it is killed first.
        atexit.register(_end_fork_server)
    if not _fork_server or not _fork_server.runs:
        _fork_server = ForkServer()
    return _fork_server


def _end_fork_server() -> None:
    if _fork_server:
        _fork_server.end()


class ForkedProcess:
    """A `StartedProcess` that the fork server has forked.

    Args:
        status: descriptor from which the process id and later the exit code are read.
        fork_server: process id of the fork server.

    `died_with` is the fork server's id once `exitcode` has found that this process died because the fork server did.
    Raises ForkServerGone, or OSError if the fork server could not fork.
    """

    def __init__(self, status: int, fork_server: int) -> None:
        self._status = status
        self._fork_server = fork_server
        self.died_with: int | None = None
        self._exitcode: int | None = None
        self.pid = (self._read() or 0) if wait([status], START_SECONDS) else 0
        if self.pid <= 0:
            os.close(status)
            if self.pid:
                raise OSError(-self.pid, os.strerror(-self.pid))
            raise ForkServerGone(f"the fork server (pid {fork_server}) has died or does not answer")
        os.set_blocking(status, False)

    @property
    def exitcode(self) -> int | None:
        if self._exitcode is None:
            try:
                code = self._read()
            except BlockingIOError:
                return None
            # An end of file without a code: the fork server died, and the kernel killed this process with it.
            self.died_with = self._fork_server if code is None else None
            self._exitcode = -signal.SIGKILL if code is None else code
        return self._exitcode

    def kill(self) -> None:
        if self._status < 0:
            raise ValueError("wanted an open process, got a closed one")
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        if self._exitcode is None:
            wait([self._status], timeout)

    def close(self) -> None:
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def _read(self) -> int | None:
        """Return the next number, or None if the fork server has died. Raises BlockingIOError if there is none yet."""
        data = os.read(self._status, NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if data else None
