"""Where the program's log lines go: to the console, and to the log file of a run."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import TextIO

from learner.stores.store import redacted

log = logging.getLogger("springbok")


def log_to_console(verbosity: int, name: str = "") -> None:
    """Print log lines on standard output.

    verbosity: 0 prints warnings only, 1 information too, 2 every row of metrics too. name: of the process, before each line.
    """
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.handlers.clear()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold bytes that are not UTF-8
    console = _Console(sys.stdout)
    console.setLevel({0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}[verbosity])
    console.setFormatter(_Redacting(f"{name}: %(message)s" if name else "%(message)s"))
    log.addHandler(console)


def log_to_file(path: Path, name: str = "") -> None:
    """Append all log lines to a file too. name: of the process. Raises OSError if the file cannot be opened."""
    file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(_Redacting(f"%(asctime)s %(levelname)s {f'{name}: ' if name else ''}%(message)s"))
    log.addHandler(file)


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
