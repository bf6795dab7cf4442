"""Tells a hanging worker from a slow one by reading the worker's clocks from the learner's process.

A worker hangs when it has work but makes no step for longer than a limit. The limit is the timeout of the run. It is longer for
a worker whose steps are known to be slow: at least `PAUSE_FACTOR` times the first step and any pause that ended with a step.

Time is counted in checks, and each check counts for at most `MAX_CHECK_SECONDS`. If the learner itself did not run (a suspended
machine, a stopped process group, swapping), checks come late, and the worker is not blamed for the gap.
"""

from __future__ import annotations

SECONDS_PER_ENVIRONMENT = 1.0
"""An Atari environment takes 0.15 to 0.2 s of one core to build. The rest is room for a busy machine."""

START_SECONDS = 120.0
"""A worker that imports PyTorch for itself may need this long on a busy machine."""

PAUSE_FACTOR = 4.0
MAX_CHECK_SECONDS = 0.5


def start_timeout(environments: int, seconds: float = SECONDS_PER_ENVIRONMENT) -> float:
    """Seconds that a worker may take until its first step, if `environments` are built at the same time.

    Workers share cores, so `environments` counts those of all workers, as if one core had to build them all. seconds: for one
    of them, on a busy machine (`EnvDescription.start_seconds`).
    """
    return START_SECONDS + seconds * environments


class Heartbeat:
    """Watches one worker process.

    Args:
        busy_seconds: seconds that the worker has spent in steps so far; a larger value later means that it has stepped.
        now: seconds of a monotonic clock.
        timeout: seconds without a step after which a worker hangs.
        start_timeout: the same before the first step.
    """

    def __init__(self, busy_seconds: float, now: float, *, timeout: float, start_timeout: float) -> None:
        self.started_at = now
        self.stepped = False
        self.quiet_seconds = 0.0  # without a step, while there was work
        self._timeout = timeout
        self._start_timeout = start_timeout
        self._busy_seconds = busy_seconds
        self._last_check = now
        self._longest_pause = 0.0

    @property
    def limit(self) -> float:
        """Seconds without a step after which the worker hangs."""
        return max(self._timeout, PAUSE_FACTOR * self._longest_pause) if self.stepped else self._start_timeout

    def hangs(self, busy_seconds: float, has_work: bool, now: float) -> bool:
        """Check the worker once. Returns whether it has exceeded its limit."""
        passed = min(now - self._last_check, MAX_CHECK_SECONDS)
        self._last_check = now
        if busy_seconds != self._busy_seconds:
            # Building environments says nothing about later steps, so the first pause is the time inside the first step.
            pause = self.quiet_seconds if self.stepped else busy_seconds - self._busy_seconds
            self._longest_pause = max(self._longest_pause, pause)
            self._busy_seconds, self.stepped, self.quiet_seconds = busy_seconds, True, 0.0
        elif has_work:
            self.quiet_seconds += passed
        else:
            self.quiet_seconds = 0.0
        return self.quiet_seconds > self.limit
