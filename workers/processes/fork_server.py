"""The nursery: a process that has imported what a run's processes need and forks them, in milliseconds, so that they share it.

Importing PyTorch takes a core two seconds, which the nursery needs once or not at all. It has no second thread in Python and
never touches a GPU; nor may what it forks. A process dies with the nursery and the nursery with its parent, by whatever signal.
(The fork server of multiprocessing lives on as long as any of its children, and leaves a folder where its user is killed.)
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

LARGEST_REQUEST = 1 << 17  # bytes; a packet of a local socket holds more
MOST_DESCRIPTORS = 64
STANDARD_INPUT, STANDARD_ERROR = 0, 2
NUMBER = struct.Struct("i")  # a process id, an exit code
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # linux/prctl.h


class Request:
    """A call, packed; `descriptors` are those of the arguments, to travel beside it."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...], name: str) -> None:
        packed = io.BytesIO()
        packer = _Packer(packed)
        packer.dump((name, function, arguments))
        self.packed = packed.getvalue()
        self.descriptors = packer.descriptors
        if len(self.packed) > LARGEST_REQUEST:
            raise ValueError(f"wanted at most {LARGEST_REQUEST} bytes of arguments, got {len(self.packed)}")


class _Packer(pickle.Pickler):
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


class Unpacker(pickle.Unpickler):
    """Of what this program packed itself."""

    def __init__(self, packed: bytes, descriptors: list[int]) -> None:
        super().__init__(io.BytesIO(packed))
        self._descriptors = descriptors

    def persistent_load(self, place: tuple[Any, ...]) -> Any:
        kind, index, *rest = place
        if kind is SharedArrays:
            return SharedArrays(rest[0], self._descriptors[index])
        return Connection(self._descriptors[index], *rest)


def run_nursery(requests: socket.socket, parent: int) -> None:
    """Entry of the nursery, which has imported this package, and with it PyTorch, by the time it gets here."""
    os.closerange(STANDARD_ERROR + 1, requests.fileno())  # what it was forked with is its parent's
    os.closerange(requests.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _read_nothing()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole terminal or group; the learner decides
    die_with_parent(parent)
    _take_name("nursery")
    gc.freeze()  # what it was forked with is never collected: that would copy pages, and may end what is its parent's
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else nobody is woken
    signal.set_wakeup_fd(wakes)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    tellers: dict[int, int] = {}  # process id -> where its end is told
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if woken in ready:
            os.read(woken, 1 << 12)
            _tell_ends(tellers)
        if requests in ready:
            packed, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, MOST_DESCRIPTORS)
            if not packed:
                return  # the parent is gone
            teller, *given = descriptors
            nursery, pid = os.getpid(), _fork()
            if not pid:
                selector.close()
                _live(nursery, packed, given, (requests.detach(), woken, wakes, teller, *tellers.values()))
            for descriptor in given:
                os.close(descriptor)  # the child alone holds them now, so its death is an end of file for whoever listens
            _tell(teller, pid)
            if pid > 0:
                tellers[pid] = teller
            else:
                os.close(teller)


def _fork() -> int:
    """As `os.fork`; minus the number of the error where it fails."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def _live(nursery: int, packed: bytes, descriptors: list[int], others: tuple[int, ...]) -> NoReturn:
    """All that a forked process does. others: descriptors that are not its own."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in others:
            os.close(descriptor)
        die_with_parent(nursery)
        name, function, arguments = Unpacker(packed, descriptors).load()
        _take_name(name)
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


def _read_nothing() -> None:
    """Whatever standard input was, or if it was closed: the end of a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != STANDARD_INPUT:
        os.dup2(nothing, STANDARD_INPUT)
        os.close(nothing)


def _take_name(name: str) -> None:
    """What the system's tools call this process; 15 characters of it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _tell_ends(tellers: dict[int, int]) -> None:
    """Tell of every child that has ended; first, so that its id is nobody else's before its end is known."""
    while tellers and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        teller = tellers.pop(ended.si_pid)
        _tell(teller, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        os.close(teller)
        os.waitpid(ended.si_pid, 0)


def _tell(teller: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(teller, NUMBER.pack(number))
