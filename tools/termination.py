"""Starts main.py for benchmarks and ends it with them, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parent.parent
ENDLESS = "--environment_max_steps=1000000000000"
"""Flag of main.py for a training that the benchmark ends."""


def unwind_when_terminated() -> None:
    """Let SIGTERM (`kill`, `timeout`) run every `finally` and `__exit__`, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def end_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a benchmark's `main` and exit with its code, or with 130 and one line after Ctrl-C."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Stopped before the end.", file=sys.stderr)
        sys.exit(130)


def training_command(*flags: str) -> list[str]:
    """Return the command that trains with these flags of main.py. It runs in `REPOSITORY`."""
    return [sys.executable, "main.py", "--op_mode=train", *flags]


@contextmanager
def training(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `main.py --op_mode=train` with these flags, and kill the process at the end of the block."""
    with subprocess.Popen(training_command(*flags), cwd=REPOSITORY, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
