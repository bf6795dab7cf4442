"""The fork server: a process that has imported PyTorch and forks the run's other processes from itself within milliseconds.

The fork server has no second Python thread and never touches a GPU. A process dies with the fork server, and the fork server
dies with its parent, by whatever signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import io
import os
import pickle
import selectors
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from replay.slot_store import SharedArrays

MAX_REQUEST_BYTES = 1 << 17  # bytes; a packet of a local socket holds more
MAX_DESCRIPTORS = 64
STANDARD_INPUT, STANDARD_ERROR = 0, 2
NUMBER = struct.Struct("i")  # a process id, an exit code
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # linux/prctl.h


class Request:
    """A call, packed; `descriptors` are those of the arguments, to travel beside it."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...], name: str) -> None:
        packed = io.BytesIO()
        packer = _Pickler(packed)
        packer.dump((name, function, arguments))
        self.packed = packed.getvalue()
        self.descriptors = packer.descriptors
        if len(self.packed) > MAX_REQUEST_BYTES:
            raise ValueError(f"wanted at most {MAX_REQUEST_BYTES} bytes of arguments, got {len(self.packed)}")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.descriptors: list[int] = []

    def persistent_id(self, thing: Any) -> tuple[Any, ...] | None:
        if isinstance(thing, SharedArrays):
            return SharedArrays, self._place(thing.descriptor), thing.layout
        if isinstance(thing, Connection):
            return Connection, self._place(thing.fileno()), thing.readable, thing.writable
        return None

    def _place(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1


class _Unpickler(pickle.Unpickler):
    """Of what this program packed itself."""

    def __init__(self, packed: bytes, descriptors: list[int]) -> None:
        super().__init__(io.BytesIO(packed))
        self._descriptors = descriptors

    def persistent_load(self, place: tuple[Any, ...]) -> Any:
        kind, index, *rest = place
        if kind is SharedArrays:
            return SharedArrays(rest[0], self._descriptors[index])
        return Connection(self._descriptors[index], *rest)


def run_fork_server(requests: socket.socket, parent: int) -> None:
    """Entry of the fork server, which has imported this package, and with it PyTorch, by the time it gets here."""
    os.closerange(STANDARD_ERROR + 1, requests.fileno())  # what it was forked with is its parent's
    os.closerange(requests.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _read_from_nothing()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole terminal or group; the learner decides
    die_with_parent(parent)
    _set_process_name("fork-server")
    gc.freeze()  # what it was forked with is never collected: that would copy pages, and may end what is its parent's
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else nobody is woken
    signal.set_wakeup_fd(wakes)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    status_pipes: dict[int, int] = {}  # process id -> where its end is told
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if woken in ready:
            os.read(woken, 1 << 12)
            _report_exits(status_pipes)
        if requests in ready:
            packed, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
            if not packed:
                return  # the parent is gone
            status_pipe, *given = descriptors
            fork_server, pid = os.getpid(), _fork()
            if not pid:
                selector.close()
                _run_child(fork_server, packed, given, (requests.detach(), woken, wakes, status_pipe, *status_pipes.values()))
            for descriptor in given:
                os.close(descriptor)  # the child alone holds them now, so its death is an end of file for whoever listens
            _send_number(status_pipe, pid)
            if pid > 0:
                status_pipes[pid] = status_pipe
            else:
                os.close(status_pipe)


def _fork() -> int:
    """As `os.fork`; minus the number of the error where it fails."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def _run_child(fork_server: int, packed: bytes, descriptors: list[int], others: tuple[int, ...]) -> NoReturn:
    """All that a forked process does. others: descriptors that are not its own."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in others:
            os.close(descriptor)
        die_with_parent(fork_server)
        name, function, arguments = _Unpickler(packed, descriptors).load()
        _set_process_name(name)
        function(*arguments)
    except BaseException:
        os.write(STANDARD_ERROR, traceback.format_exc().encode())
    finally:
        os._exit(1)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process with the one, or rather the thread, that started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _read_from_nothing() -> None:
    """Whatever standard input was, or if it was closed: the end of a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != STANDARD_INPUT:
        os.dup2(nothing, STANDARD_INPUT)
        os.close(nothing)


def _set_process_name(name: str) -> None:
    """What the system's tools call this process; 15 characters of it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _report_exits(status_pipes: dict[int, int]) -> None:
    """Tell of every child that has ended; first, so that its id is nobody else's before its end is known."""
    while status_pipes and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        status_pipe = status_pipes.pop(ended.si_pid)
        _send_number(status_pipe, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        os.close(status_pipe)
        os.waitpid(ended.si_pid, 0)


def _send_number(status_pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(status_pipe, NUMBER.pack(number))
