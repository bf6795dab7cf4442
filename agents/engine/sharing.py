"""Whether PyTorch's own threads share each operation of a small pass, chosen by timing both ways during the run.

A small network has operations of some hundred microseconds. PyTorch's threads (`torch.set_num_threads`) synchronise at each of
them. On two idle cores an update of SAC took 0.6 times as long with two such threads as with one. While other programs kept the
cores busy it took five times as long, because every operation waited for a thread that had lost its core. No measurement before
the run can tell which is the case, since it changes.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORTH_SHARING = 10_000_000
"""Multiplications of a pass for each thread after the first.

On two idle cores two threads took 0.94 times as long as one for 9 million, 0.85 times for 18 million and 0.66 times for 54
million. More than two threads have not been measured.
"""

TIMED = 6
"""Passes of either way in a comparison. With a policy delay of two or three every second or third pass is longer. Six passes
are whole cycles of both delays, so both ways have as many long ones.
"""

FASTER = 0.9
"""Shared operations are used if they take at most this part of the time."""

SHORTEST_ROUND, LONGEST_ROUND = 100, 1600
"""Passes between two comparisons. Each comparison that one thread wins doubles their number, up to the second: on busy cores a
comparison takes as long as 36 passes in one thread.
"""


class SharedOperations:
    """Runs the passes of one network with one thread or with several, whichever is faster at present.

    Args:
        threads: the most threads that an operation may have. With one nothing is ever timed.
    """

    def __init__(self, threads: int) -> None:
        self.most = threads
        self.chosen = 1  # threads that won the last comparison
        self._spent = 0.0  # seconds of this pass so far
        self._now = 1  # threads of this pass
        self._timed: dict[int, list[float]] = {}
        self._recent: deque[float] = deque(maxlen=TIMED)
        self._alone = 0.0  # seconds of a pass with one thread in the last comparison
        self._round = SHORTEST_ROUND
        self._left = TIMED  # passes before the first comparison: they warm up

    @contextmanager
    def sharing(self, multiplied: int) -> Iterator[None]:
        """Run a part of a pass of so many multiplications. `end_pass` follows the last part of a pass."""
        threads = threads_worthwhile(multiplied, self._now)
        started, before = time.perf_counter(), torch.get_num_threads()
        if threads > 1:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads > 1:
                torch.set_num_threads(before)
            self._spent += time.perf_counter() - started

    def end_pass(self, multiplied: int) -> None:
        """Count a pass, and choose the threads of the next one. multiplied: by the whole pass."""
        spent, self._spent = self._spent, 0.0
        if threads_worthwhile(multiplied, self.most) == 1:
            return
        if self._timed:
            self._compare(spent)
            return
        self._left -= 1
        self._recent.append(spent)
        # Cores that become busy are noticed at once; cores that become idle at the next comparison.
        slower = self.chosen > 1 and len(self._recent) == TIMED and statistics.median(self._recent) > self._alone
        if slower or self._left <= 0:
            self._timed = {1: [], self.most: []}
            self._now = 1

    def _compare(self, spent: float) -> None:
        """Add a timed pass to the comparison, and end it after the last one."""
        self._timed[self._now].append(spent)
        if len(self._timed[self._now]) < TIMED:
            return
        if self._now == 1:
            self._now = self.most
            return
        self._alone, shared = (statistics.median(self._timed[threads]) for threads in (1, self.most))
        self.chosen = self._now = self.most if shared <= FASTER * self._alone else 1
        self._round = SHORTEST_ROUND if self.chosen > 1 else min(2 * self._round, LONGEST_ROUND)
        self._left = self._round
        self._timed = {}
        self._recent.clear()


def threads_worthwhile(multiplied: int, threads: int) -> int:
    """Return how many of the threads should share the operations of a pass of so many multiplications."""
    return min(threads, 1 + multiplied // WORTH_SHARING)
