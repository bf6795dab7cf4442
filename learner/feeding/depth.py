"""Decides how many batches are prepared ahead, without threads or clocks."""

from __future__ import annotations

WINDOW = 100  # batches in which none came late before the depth is lowered


class PreparationDepth:
    """Finds the smallest number of batches, from 1 to `most`, with which the learner does not wait.

    Each prepared batch makes its data one update older. The depth grows by one when a batch came late although its data was
    there. It falls by one when another batch was ready behind each of the last `WINDOW` batches.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 1
        self._taken = 0
        self._least_left = most

    def take(self, left: int, *, late: bool) -> None:
        """The learner took a batch.

        Args:
            left: batches that are ready behind it.
            late: whether the learner waited for it although its data was there.
        """
        self._taken += 1
        self._least_left = min(self._least_left, left)
        if late:
            self._settle(min(self.now + 1, self.most))
        elif self._taken == WINDOW:
            self._settle(self.now - 1 if self._least_left else self.now)

    def _settle(self, depth: int) -> None:
        self.now, self._taken, self._least_left = depth, 0, self.most
