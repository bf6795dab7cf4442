"""Tells a hanging worker from a slow one, by looking at its clocks from outside.

A worker hangs when it has work, has not stepped for `timeout` seconds, and for several times as long as its first step took and
as any pause it has come back from. Time is counted as the looks at it add up, each for at most `LONGEST_LOOK`: where the
learner itself did not run (a suspended machine, a stopped process group, swapping) the worker is not blamed.
"""

from __future__ import annotations

START_SECONDS = 120.0
"""Until its first step a worker imports PyTorch and builds environments; on a busy machine that takes long."""

PATIENCE = 4.0
LONGEST_LOOK = 0.5


class Heartbeat:
    """One worker process's. beat: seconds that the worker has spent in steps; now: seconds of a monotonic clock."""

    def __init__(self, timeout: float, beat: float, now: float) -> None:
        self.started = False
        self.quiet = 0.0  # seconds without a step, while there was work
        self._timeout = timeout
        self._beat = beat
        self._last_look = now
        self._longest_pause = 0.0

    @property
    def limit(self) -> float:
        """Seconds without a step after which it hangs."""
        return max(self._timeout, PATIENCE * self._longest_pause) if self.started else START_SECONDS

    def hangs(self, beat: float, has_work: bool, now: float) -> bool:
        """One look at the worker."""
        passed = min(now - self._last_look, LONGEST_LOOK)
        self._last_look = now
        if beat != self._beat:
            self._longest_pause = max(self._longest_pause, self.quiet if self.started else beat - self._beat)
            self._beat, self.started, self.quiet = beat, True, 0.0
        elif has_work:
            self.quiet += passed
        else:
            self.quiet = 0.0
        return self.quiet > self.limit
