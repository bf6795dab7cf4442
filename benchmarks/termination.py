"""What a benchmark does when it is told to end: programs that it has started must not go on without it."""

from __future__ import annotations

import signal
import sys


def unwind_when_terminated() -> None:
    """Let SIGTERM (`kill`, `timeout`) leave every `with` and `finally`, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
