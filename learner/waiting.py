"""Says what the program waits for, if a wait before training is long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("springbok")

PATIENCE = 4.0
"""Seconds after which a wait is announced. Most environments are measured in two."""


@contextmanager
def announced(line: str, patience: float = PATIENCE) -> Iterator[None]:
    """Log the line, once, if the block takes more than `patience` seconds."""
    timer = threading.Timer(patience, log.info, (line,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The line must not be logged after the wait has ended.
        timer.join()
