"""Where the program's log lines go: to the console, and to the log file of a run."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from learner import library_output
from learner.stores.store import redacted

log = logging.getLogger("springbok")

KEEPER_SECONDS = 5.0  # for the process that keeps messages to write the last ones

_streams: tuple[TextIO, TextIO] | None = None
"""The user's standard output and error while descriptors 1 and 2 belong to libraries."""


def standard_output() -> TextIO:
    """The stream on which the user reads the program's lines."""
    return _streams[0] if _streams else sys.stdout


def standard_error() -> TextIO:
    """The stream on which the user reads the program's errors and its progress."""
    return _streams[1] if _streams else sys.stderr


def error_descriptor() -> int:
    """The descriptor of `standard_error`, for a signal handler."""
    return _streams[1].fileno() if _streams else 2


@contextmanager
def apart_from_libraries() -> Iterator[None]:
    """A context in which libraries print into a run's log, once each message, and only the program prints for the user.

    It covers native code and child processes, because it redirects the descriptors 1 and 2.
    """
    global _streams
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-S", "-m", library_output.__name__]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    # In a session of its own: Ctrl-C must not end it before the program.
    keeper = subprocess.Popen(command, stdin=reader, env=path, start_new_session=True)
    os.close(reader)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    own = [os.fdopen(os.dup(number), "w", errors="backslashreplace", buffering=1) for number in (1, 2)]
    _streams = own[0], own[1]
    for number in (1, 2):
        os.dup2(writer, number)
    os.close(writer)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        _command("end")
        for number, stream in zip((1, 2), own, strict=True):
            os.dup2(stream.fileno(), number)
        _use_descriptors()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(KEEPER_SECONDS)


@contextmanager
def shared_with_libraries() -> Iterator[None]:
    """A context in which descriptors 1 and 2 are the user's again, for processes that print for the user."""
    if not _streams:
        yield
        return
    theirs = [os.dup(number) for number in (1, 2)]
    for number, stream in zip((1, 2), _streams, strict=True):
        os.dup2(stream.fileno(), number)
    try:
        yield
    finally:
        for number, descriptor in zip((1, 2), theirs, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def keep_library_output(path: Path) -> None:
    """Let the messages of libraries go to a log from now on."""
    _command(f"log {path.absolute()}")


def _command(text: str) -> None:
    if _streams:
        with suppress(OSError):  # the process was killed
            os.write(2, f"\n{library_output.COMMAND}{text}\n".encode(errors="surrogateescape"))


def _use_descriptors() -> None:
    """Print to descriptors 1 and 2 again."""
    global _streams
    _streams = None
    for handler in log.handlers:
        if isinstance(handler, _Console):
            handler.stream = sys.stdout


os.register_at_fork(after_in_child=_use_descriptors)  # a worker closes the user's streams


def log_to_console(verbosity: int, name: str = "") -> None:
    """Print log lines on standard output.

    verbosity: 0 prints warnings only, 1 information too, 2 every row of metrics too. name: of the process, before each line.
    """
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.handlers.clear()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold bytes that are not UTF-8
    console = _Console(standard_output())
    console.setLevel({0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}[verbosity])
    console.setFormatter(_Redacting(f"{name}: %(message)s" if name else "%(message)s"))
    log.addHandler(console)


def log_to_file(path: Path, name: str = "") -> None:
    """Append all log lines to a file too. name: of the process. Raises OSError if the file cannot be opened."""
    file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(_Redacting(f"%(asctime)s %(levelname)s {f'{name}: ' if name else ''}%(message)s"))
    log.addHandler(file)
    keep_library_output(path)


class _Redacting(logging.Formatter):
    """Hides the credentials of URLs in every line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class _Console(logging.StreamHandler[TextIO]):
    """Loses a line if the terminal or the other end of a pipe is gone. The run continues, and its log file has the line."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


class _LogFile(logging.FileHandler):
    """Loses a line if the disk is full. The run continues, and the console has the line."""

    def handleError(self, record: logging.LogRecord) -> None:
        return
