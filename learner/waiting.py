"""Says what the program waits for, if a wait before training is long."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

log = logging.getLogger("springbok")

PATIENCE = 4.0
"""Seconds after which a wait is announced. Most environments are measured in two."""
LONGEST_SILENCE = 30.0
"""Seconds between two lines about a long wait."""


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


class Progress:
    """Logs how far a long wait has come, and the time that is left, at growing intervals of at most `LONGEST_SILENCE` seconds.

    Args:
        line: what the program waits for.
        steps: at the end of the wait.
        limit: seconds after the first step at which it ends in any case.
    """

    def __init__(self, line: str, steps: int, limit: float = math.inf) -> None:
        self._line, self._steps, self._limit = line, steps, limit
        self._began = monotonic()
        self._stepping = 0.0  # time of the first step
        self._next = self._began + 2 * PATIENCE

    def __call__(self, done: int) -> None:
        """Log a line if it is time for one. done: steps so far, at most 0 before the first."""
        now = monotonic()
        if done > 0 and not self._stepping:
            self._stepping = now
        if now < self._next:
            return
        self._next = now + min(now - self._began, LONGEST_SILENCE)
        if done <= 0:
            log.info("%s: no step yet after %.0f s", self._line, now - self._began)
            return
        passed = now - self._stepping
        left = max(0.0, min(passed / done * (self._steps - done), self._limit - passed))
        log.info("%s: step %s of %s, about %.0f s left", self._line, f"{done:,}", f"{self._steps:,}", left)
