"""How many batches are prepared ahead: a rule without threads or clocks."""

from __future__ import annotations

WINDOW = 100  # batches without one that came late, before one less is tried


class PreparationDepth:
    """As few as keep the learner from waiting, from 1 to `most`: each prepared batch makes its data one update older.

    One more when the learner had to wait for a batch though its data was there. One less when, over `WINDOW` batches, there
    always was another one behind the one that was taken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 1
        self._taken = 0
        self._always_left = most

    def take(self, left: int, *, late: bool) -> None:
        """The learner took a batch. left: prepared ones behind it. late: it waited for work, not for trajectories."""
        self._taken += 1
        self._always_left = min(self._always_left, left)
        if late:
            self._settle(min(self.now + 1, self.most))
        elif self._taken == WINDOW:
            self._settle(self.now - 1 if self._always_left else self.now)

    def _settle(self, depth: int) -> None:
        self.now, self._taken, self._always_left = depth, 0, self.most
