"""The doctor of a run: keeps the mean of its rows of metrics, and says what limits it."""

from __future__ import annotations

from collections.abc import Mapping

from learner.metrics.bottleneck import Verdict, diagnose
from learner.metrics.metrics import Row
from learner.settings.config import Config

LEAST_SECONDS = 5.0
"""A shorter time says little: an update of a large network takes seconds."""


class Doctor:
    """cores: how many the run may use."""

    def __init__(self, config: Config, cores: int) -> None:
        self._config = config
        self._cores = cores
        self._first = True
        self._sums: Row = {}
        self._seconds: Row = {}  # over which each number was seen

    def add(self, row: Mapping[str, float], seconds: float) -> Verdict | None:
        """What limits the run in this row of metrics, which is about `seconds`; the first one is start-up and not counted."""
        if self._first:
            self._first = False
            return None
        for name, value in row.items():
            self._sums[name] = self._sums.get(name, 0.0) + seconds * value
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        return diagnose(row, self._config, self._cores) if seconds >= LEAST_SECONDS else None

    def verdict(self) -> Verdict | None:
        """What limited the run so far; None where there was too little to see."""
        if self._seconds.get("cores/idle", 0.0) < LEAST_SECONDS:
            return None
        means = {name: total / self._seconds[name] for name, total in self._sums.items()}
        return diagnose(means, self._config, self._cores)
