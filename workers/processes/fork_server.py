"""The fork server: a process that has imported PyTorch and forks the run's other processes from itself within milliseconds.

The fork server has one Python thread and never touches a GPU, and neither may the processes that it forks. They die with the
fork server, and the fork server dies with its parent, by whatever signal.

The fork server of `multiprocessing` was measured for this and does not fit:

- It imports PyTorch for itself, so the first process starts after 1.1 to 1.7 s. Here it starts after 0.01 s, because the fork
  server is itself forked from the program, which has imported PyTorch already.
- If its user is killed, it lives on with all its processes and leaves a folder behind. If it is killed, its processes live on.
- Ctrl-C ends its processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import io
import os
import pickle
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from replay.slot_store import SharedArrays
from workers.processes.out_of_memory import is_out_of_memory

MAX_REQUEST_BYTES = 1 << 17  # fits into one packet of a local socket
MAX_DESCRIPTORS = 64
STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2
NUMBER = struct.Struct("i")  # a process id or an exit code
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # linux/prctl.h


class ForkRequest:
    """A pickled call of `function(*arguments)` in a new process with this name.

    `descriptors` are the file descriptors of `SharedArrays` and `Connection`s among the arguments; the pickle holds their
    indices. The socket duplicates them into the fork server. Raises ValueError if the pickle is too large.
    """

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...], name: str) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump((name, function, arguments))
        self.pickled = file.getvalue()
        self.descriptors = pickler.descriptors
        if len(self.pickled) > MAX_REQUEST_BYTES:
            raise ValueError(f"wanted at most {MAX_REQUEST_BYTES} bytes of arguments, got {len(self.pickled)}")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.descriptors: list[int] = []

    def persistent_id(self, thing: Any) -> tuple[Any, ...] | None:
        if isinstance(thing, SharedArrays):
            return SharedArrays, self._index(thing.descriptor), thing.layout
        if isinstance(thing, Connection):
            return Connection, self._index(thing.fileno()), thing.readable, thing.writable
        return None

    def _index(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1


class _Unpickler(pickle.Unpickler):
    """Reads requests. They come from this program itself, so unpickling is safe."""

    def __init__(self, pickled: bytes, descriptors: list[int]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._descriptors = descriptors

    def persistent_load(self, reference: tuple[Any, ...]) -> Any:
        kind, index, *rest = reference
        if kind is SharedArrays:
            return SharedArrays(rest[0], self._descriptors[index])
        return Connection(self._descriptors[index], *rest)


def run_fork_server(requests: socket.socket, parent: int) -> None:
    """Fork a process for each request until the parent closes its end.

    Each request brings descriptors. The first one is the process's status pipe, which takes its id and later its exit code.

    Args:
        requests: brings pickled `ForkRequest`s.
        parent: process id of the parent.
    """
    _detach(requests, parent)
    exits, exits_writer = _pipe_of_exits()
    status_pipes: dict[int, int] = {}  # process id -> descriptor
    while True:
        ready = wait([exits, requests])
        if exits in ready:
            os.read(exits, 1 << 12)
            _report_exits(status_pipes)
        if requests in ready:
            pickled, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
            if not pickled:
                return  # the parent has closed its end
            status_pipe, *arguments = descriptors
            # The id is read before the fork, so that the child can tell whether this parent still lives.
            fork_server, pid = os.getpid(), _fork()
            if pid == 0:
                # The child must not hold what belongs to others: its copies would hide their ends of file.
                for descriptor in (requests.detach(), exits, exits_writer, status_pipe, *status_pipes.values()):
                    os.close(descriptor)
                _run_child(fork_server, pickled, arguments)
            for descriptor in arguments:
                os.close(descriptor)  # now only the child holds them, so its death is an end of file for its peers
            _send_number(status_pipe, pid)
            if pid > 0:
                status_pipes[pid] = status_pipe
            else:
                os.close(status_pipe)


def _detach(requests: socket.socket, parent: int) -> None:
    """Give up what was inherited from the parent but `requests`, standard output and standard error; die with the parent."""
    # The null device takes the place of each descriptor: the run's log and other Python objects may still write to theirs, and
    # the number of a closed one would soon belong to a pipe.
    null = os.open(os.devnull, os.O_RDWR)
    inherited = {int(name) for name in os.listdir("/proc/self/fd")} - {STANDARD_OUTPUT, STANDARD_ERROR, requests.fileno(), null}
    for number in {STANDARD_INPUT} | inherited:
        os.dup2(null, number, inheritable=number == STANDARD_INPUT)
    if null > STANDARD_ERROR:
        os.close(null)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole terminal or process group, but the learner decides
    die_with_parent(parent)
    set_process_name("fork-server")
    # Collecting inherited objects would copy their memory pages and could run finalisers that are the parent's to run.
    gc.freeze()


def _pipe_of_exits() -> tuple[int, int]:
    """Return the ends of a pipe into which a byte is written whenever a child exits, so that `wait` wakes up."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the signal is ignored and writes no byte
    signal.set_wakeup_fd(writer)
    return reader, writer


def _fork() -> int:
    """Do `os.fork`, but return the negative error number if it fails."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def _run_child(fork_server: int, pickled: bytes, descriptors: list[int]) -> NoReturn:
    """Do everything that a forked process does. Exits with code ENOMEM if the arguments, the arena among them, find no memory.

    fork_server: process id of its parent.
    """
    try:
        # The pipe of exits is closed in the child, so its number may soon belong to another file.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(fork_server)
        _ignore_termination()
        name, function, arguments = _Unpickler(pickled, descriptors).load()
        set_process_name(name)
        function(*arguments)
    except BaseException as error:
        if is_out_of_memory(error):
            os._exit(errno.ENOMEM)
        os.write(STANDARD_ERROR, traceback.format_exc().encode())
    finally:
        # `function` ends its process by itself, so a return counts as a failure too.
        os._exit(1)


def _ignore_termination() -> None:
    """Ignore SIGTERM in this process, but let it end the processes that this one starts, as environments expect on closing.

    An ignored signal would stay ignored in a program that is executed; a handler does not. Forks inherit the handler, so it is
    reset in them.
    """

    def set_blocked(how: int) -> None:
        signal.pthread_sigmask(how, {signal.SIGTERM})

    def begin_fork() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_blocked(signal.SIG_UNBLOCK)

    signal.signal(signal.SIGTERM, lambda *_: None)
    # The signal is blocked in between, or the handler would take one that comes before it is reset.
    os.register_at_fork(
        before=lambda: set_blocked(signal.SIG_BLOCK),
        after_in_parent=lambda: set_blocked(signal.SIG_UNBLOCK),
        after_in_child=begin_fork,
    )


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends. parent: process id of that thread's process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before this call sends no signal, but then this process already has another parent.
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set the name that `ps` shows; the kernel keeps 15 characters of it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _report_exits(status_pipes: dict[int, int]) -> None:
    """Write the exit code of each child that has exited to its status pipe, and reap it.

    The code is reported before the child is reaped. Until then its id stays taken, so the learner cannot kill another process
    that got the same id.
    """
    while status_pipes and (exit_ := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        status_pipe = status_pipes.pop(exit_.si_pid)
        _send_number(status_pipe, exit_.si_status if exit_.si_code == os.CLD_EXITED else -exit_.si_status)
        os.close(status_pipe)
        os.waitpid(exit_.si_pid, 0)


def _send_number(status_pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the learner has closed its end, so it no longer waits for this process
        os.write(status_pipe, NUMBER.pack(number))
