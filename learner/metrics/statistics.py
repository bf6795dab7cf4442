"""Statistics of the numbers between two records of metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Record = dict[str, float]
"""One line of metrics: name -> number."""


class UpdateMetrics:
    """Mean of the updates' scalars since the last reading, summed on the device so that no update waits for a number."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sums: Tensor | None = None  # [2, names]: sum of the numbers, and how many there were

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.float() for value in scalars.values()])
        known = values.isfinite()
        entry = torch.stack([torch.where(known, values, 0.0), known.float()])
        self._names = list(scalars)
        self._sums = entry if self._sums is None else self._sums + entry

    def read(self) -> Record:
        """The means over the updates in which a scalar was finite, and start anew; empty where no update was made."""
        if self._sums is None:
            return {}
        sums, counts = self._sums.tolist()
        self._sums = None
        return {name: total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count}


class Episode(NamedTuple):
    """A whole episode: its raw return, and its length in steps."""

    episode_return: float
    length: int


def ended_episodes(trajectory: Mapping[str, np.ndarray]) -> list[Episode]:
    """The episodes that ended in a trajectory (`[*shape]` each field)."""
    returns, lengths = trajectory["episode_return"], trajectory["episode_length"]
    return [Episode(float(returns[row]), int(lengths[row])) for row in np.flatnonzero(lengths)]


class EpisodeStatistics:
    """Raw returns and lengths of whole episodes."""

    def __init__(self, window: int) -> None:
        self.count = 0
        self.recent: deque[float] = deque(maxlen=window)
        self._new: list[Episode] = []

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.count += 1
            self._new.append(episode)
            self.recent.append(episode.episode_return)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, None before the first."""
        return float(np.mean(self.recent)) if self.recent else None

    def read(self) -> Record:
        """Means since the last reading and over the window; a name is absent where no episode has ended."""
        row: Record = {}
        if self._new:
            row["charts/episodic_return"], row["charts/episodic_length"] = np.mean(self._new, axis=0).tolist()
            self._new = []
        if self.mean_return is not None:
            row["charts/episodic_return_mean"] = self.mean_return
        return row


class LagStatistics:
    """Policy lag in updates, learner's version minus acting version: of fresh columns, and of each replay of the mixture."""

    def __init__(self, replay_names: Sequence[str]) -> None:
        self._names = [f"replay/{name}/policy_lag" for name in replay_names]
        self._values: dict[str, list[float]] = {}

    def add(self, update: int, policy_version: np.ndarray, is_replay: np.ndarray, source: np.ndarray) -> None:
        """policy_version `[B, T]`, is_replay and source (index of the replay) `[B]`."""
        lag = update - policy_version.mean(1)
        groups = {"charts/policy_lag": ~is_replay, **{name: source == index for index, name in enumerate(self._names)}}
        for name, columns in groups.items():
            if columns.any():
                self._values.setdefault(name, []).append(float(lag[columns].mean()))

    def read(self) -> Record:
        row = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values = {}
        return row


class TimeShares:
    """Which part of the wall time went into what: the learner's own stages, and those of whoever keeps clocks.

    clocks: by owner, the names of its stages and their seconds, float64 `[owners, len(names)]`, read and never written
    here. Of several owners (worker processes) it is their mean.
    """

    def __init__(self, clocks: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
        self._clocks = clocks
        self._learner: Record = {}
        self._before = self._totals()

    def add(self, stage: str, seconds: float) -> None:
        """Count learner time spent in `stage`."""
        name = f"time/learner_{stage}"
        self._learner[name] = self._learner.get(name, 0.0) + seconds

    def read(self, passed: float) -> Record:
        """Shares of the `passed` seconds since the last reading."""
        totals = self._totals()
        shares = {name: (seconds - self._before.get(name, 0.0)) / passed for name, seconds in totals.items()}
        self._before = totals
        return shares

    def _totals(self) -> Record:
        totals = dict(self._learner)
        for owner, (names, seconds) in self._clocks.items():
            totals |= {f"time/{owner}_{name}": total for name, total in zip(names, seconds.mean(0).tolist(), strict=True)}
        return totals
