"""Tells a hanging worker from a slow one, by looking at its clocks from outside.

A worker hangs when it has work, has not stepped for `timeout` seconds, and for several times as long as its first step took and
as any pause it has come back from. Time is counted as the looks at it add up, each for at most `MAX_CHECK_SECONDS`: where the
learner itself did not run (a suspended machine, a stopped process group, swapping) the worker is not blamed.
"""

from __future__ import annotations

START_SECONDS = 120.0
"""Until its first step a worker imports PyTorch and builds environments; on a busy machine that takes long."""

PAUSE_FACTOR = 4.0
MAX_CHECK_SECONDS = 0.5


class Heartbeat:
    """One worker process's. busy_seconds: seconds that the worker has spent in steps; now: seconds of a monotonic clock."""

    def __init__(self, timeout: float, busy_seconds: float, now: float) -> None:
        self.started = False
        self.quiet = 0.0  # seconds without a step, while there was work
        self._timeout = timeout
        self._busy_seconds = busy_seconds
        self._last_check = now
        self._longest_pause = 0.0

    @property
    def limit(self) -> float:
        """Seconds without a step after which it hangs."""
        return max(self._timeout, PAUSE_FACTOR * self._longest_pause) if self.started else START_SECONDS

    def hangs(self, busy_seconds: float, has_work: bool, now: float) -> bool:
        """One look at the worker."""
        passed = min(now - self._last_check, MAX_CHECK_SECONDS)
        self._last_check = now
        if busy_seconds != self._busy_seconds:
            self._longest_pause = max(self._longest_pause, self.quiet if self.started else busy_seconds - self._busy_seconds)
            self._busy_seconds, self.started, self.quiet = busy_seconds, True, 0.0
        elif has_work:
            self.quiet += passed
        else:
            self.quiet = 0.0
        return self.quiet > self.limit
