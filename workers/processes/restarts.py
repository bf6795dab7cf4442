"""How many restarts a run may have: so many within an hour, so that a rare death costs nothing and an endless one ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 3600.0


@dataclass(frozen=True)
class Cause:
    """Why a worker ended. reason: one line; details: its traceback or stack, or nothing.

    died_with: the process whose death took the worker along, and others: one failure, however many they were.
    """

    reason: str
    details: str = ""
    died_with: int | None = None


class RestartBudget:
    """Counts the failures of the last hour, all workers together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._recent: deque[tuple[float, Cause]] = deque()

    def allows(self, cause: Cause, now: float) -> bool:
        """Count a failure at `now` (seconds of a monotonic clock); whether its worker may be started again."""
        while self._recent and now - self._recent[0][0] >= WINDOW_SECONDS:
            self._recent.popleft()
        if cause.died_with is None or all(cause.died_with != other.died_with for _, other in self._recent):
            self._recent.append((now, cause))
        return len(self._recent) <= self.most

    @property
    def used(self) -> int:
        """Failures within the last hour, as of the last one."""
        return len(self._recent)

    def message(self) -> str:
        """Why the run ends: the first of the failures that used up the budget, its own words last."""
        first = self._recent[0][1]
        counted = f"Workers failed {self.used} times within an hour, max_worker_restarts={self.most}; the first cause:"
        return "\n".join(part for part in (counted, first.details, first.reason) if part)
