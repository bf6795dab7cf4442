"""Limits how often workers are restarted within an hour: a rare failure costs nothing, and a permanent one ends the run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 3600.0


@dataclass(frozen=True)
class Cause:
    """Why a worker ended.

    reason: one line. details: its traceback or stack, or empty. died_with: id of the process or node whose death ended this
    worker and possibly others, which together count as one failure.
    """

    reason: str
    details: str = ""
    died_with: int | None = None


class RestartBudget:
    """Counts the failures of all workers within the last hour and allows `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._recent: deque[tuple[float, Cause]] = deque()

    def allows(self, cause: Cause, now: float) -> bool:
        """Count a failure at `now`, in seconds of a monotonic clock. Returns whether its worker may be restarted."""
        while self._recent and now - self._recent[0][0] >= WINDOW_SECONDS:
            self._recent.popleft()
        if cause.died_with is None or all(cause.died_with != other.died_with for _, other in self._recent):
            self._recent.append((now, cause))
        return len(self._recent) <= self.most

    @property
    def used(self) -> int:
        """Failures within the hour before the last failure."""
        return len(self._recent)

    def message(self) -> str:
        """Return why the run ends: the first of the recent failures, its reason in the last line."""
        first = self._recent[0][1]
        counted = f"Workers failed {self.used} times within an hour, max_worker_restarts={self.most}; the first cause:"
        details = first.details if "\n" in first.details else ""  # a single line is part of the reason
        return "\n".join(part for part in (counted, details, first.reason) if part)
