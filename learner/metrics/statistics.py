"""Statistics that fill a record of metrics: updates, episodes, policy lag and time since the last record."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learner.metrics.infos import Ends, InfoStatistics, row_of
from wrappers.infos import Infos

Record = dict[str, float]
"""One line of metrics: name -> number. `learner.metrics.writer` lists names and units."""


class UpdateMetrics:
    """Means of the scalars that updates report. They are summed on the device, so that no update waits for a number."""

    def __init__(self) -> None:
        self._sums: dict[
            tuple[str, ...], Tensor
        ] = {}  # names -> [2, names]: sums of the finite numbers, and how many there were

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        """scalars: of one update. Updates may report different ones: one without a used step has no loss."""
        if not scalars:
            return
        names, values = tuple(scalars), torch.stack([value.float() for value in scalars.values()])
        # A NaN says that there was nothing to measure, such as a batch without a column of some replay.
        finite = values.isfinite()
        entry = torch.stack([torch.where(finite, values, 0.0), finite.float()])
        self._sums[names] = self._sums[names] + entry if names in self._sums else entry

    def read(self) -> Record:
        """Means since the last call, over the updates in which a scalar was finite; empty without an update."""
        totals: dict[str, tuple[float, float]] = {}
        for names, sums in self._sums.items():
            # Only here does the host wait for the device: one transfer for each set of names.
            for name, total, count in zip(names, *sums.tolist(), strict=True):
                before, counted = totals.get(name, (0.0, 0.0))
                totals[name] = before + total, counted + count
        self._sums = {}
        return {name: total / count for name, (total, count) in totals.items() if count}


class EndedEpisode(NamedTuple):
    """A whole episode: its raw return, its length in steps, the numbers in the info of its last step, its environment."""

    episode_return: float
    length: int
    infos: Ends = {}
    environment: int = 0


def ended_episodes(trajectory: Mapping[str, np.ndarray], infos: Infos | None = None) -> list[EndedEpisode]:
    """The episodes that ended in a trajectory (each field `[*shape]`). infos: its numbers, with values `[T, names]`."""
    returns, lengths = trajectory["episode_return"], trajectory["episode_length"]
    return [
        EndedEpisode(
            float(returns[row]), int(lengths[row]), row_of(infos, row) if infos else {}, int(trajectory["environment_id"])
        )
        for row in np.flatnonzero(lengths).tolist()
    ]


class ReturnStatistics:
    """Raw returns and lengths of whole episodes.

    window: episodes of the running mean. tasks: ids of the environments, if there are several. recent_of_tasks: the returns of
    the last `window` episodes of each. infos: numbers of infos.
    """

    def __init__(self, window: int, tasks: Sequence[str] = ()) -> None:
        self.count = 0
        self.recent_of_tasks: dict[str, deque[float]] = {task: deque(maxlen=window) for task in tasks}
        self.recent: deque[float] = deque(maxlen=window)
        self.infos = InfoStatistics(window)
        self._new: list[EndedEpisode] = []

    def add(self, episodes: Sequence[EndedEpisode], infos: Mapping[str, tuple[float, int]] | None = None) -> None:
        """Add episodes that ended. infos: sums over the steps since the last call, see `learner.metrics.infos`."""
        self.infos.add([episode.infos for episode in episodes], infos or {})
        for episode in episodes:
            self.count += 1
            self._new.append(episode)
            self.recent.append(episode.episode_return)
            if task := self._task_of(episode):
                self.recent_of_tasks[task].append(episode.episode_return)

    def _task_of(self, episode: EndedEpisode) -> str | None:
        tasks = tuple(self.recent_of_tasks)
        return tasks[episode.environment % len(tasks)] if tasks else None

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, None before the first."""
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def task_means(self) -> dict[str, float]:
        """The same of each task that has ended an episode; empty if there is one environment."""
        return {task: float(np.mean(recent)) for task, recent in self.recent_of_tasks.items() if recent}

    def read(self) -> Record:
        """Means since the last call and over the window. A name is absent if no episode has ended."""
        record: Record = {}
        groups = {"charts": self._new}
        for episode in self._new if self.recent_of_tasks else ():
            groups.setdefault(f"tasks/{self._task_of(episode)}", []).append(episode)
        for name, episodes in groups.items():
            if episodes:
                means = np.mean([each[:2] for each in episodes], axis=0).tolist()
                record[f"{name}/episodic_return"], record[f"{name}/episodic_length"] = means
        self._new = []
        if self.mean_return is not None:
            record["charts/episodic_return_mean"] = self.mean_return
        record |= {f"tasks/{task}/episodic_return_mean": mean for task, mean in self.task_means.items()}
        return {**record, **self.infos.read()}


class LagStatistics:
    """Policy lag in updates: the learner's version minus the acting version, of fresh columns and of each replay's columns."""

    def __init__(self, replay_names: Sequence[str]) -> None:
        self._names = [f"replay/{name}/policy_lag" for name in replay_names]
        self._values: dict[str, list[float]] = {}

    def add(self, update: int, policy_version: np.ndarray, is_replay: np.ndarray, source: np.ndarray) -> None:
        """Add the columns of one batch.

        Args:
            update: the learner's version.
            policy_version: int64 `[B, T]`, the acting version of each step.
            is_replay: bool `[B]`, whether an earlier batch may have had the column.
            source: int `[B]`, index of the replay that a column comes from.
        """
        lag = update - policy_version.mean(1)
        groups = {"charts/policy_lag": ~is_replay, **{name: source == index for index, name in enumerate(self._names)}}
        for name, columns in groups.items():
            if columns.any():
                self._values.setdefault(name, []).append(float(lag[columns].mean()))

    def read(self) -> Record:
        """Means since the last call. A name is absent if no batch had such a column."""
        record = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values = {}
        return record


class TimeFractions:
    """Fractions of wall time: of the learner's stages, and of clocks that other parts of the run keep.

    clocks: owner -> the names of its stages, and their seconds as float64 `[owners, len(names)]`, which are only read. The
    fraction of several owners (worker processes) is their mean.
    """

    def __init__(self, clocks: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
        self._clocks = clocks
        self._learner: Record = {}
        self._counted = {owner: seconds.copy() for owner, (_, seconds) in clocks.items()}

    def add(self, stage: str, seconds: float) -> None:
        """Count the learner's time in `stage`."""
        name = f"time/learner_{stage}"
        self._learner[name] = self._learner.get(name, 0.0) + seconds

    def read(self, passed: float) -> Record:
        """Fractions of the `passed` seconds since the last call; only CPU time can be more than 1."""
        fractions = {name: seconds / passed for name, seconds in self._learner.items()}
        self._learner = dict.fromkeys(self._learner, 0.0)
        for owner, (names, seconds) in self._clocks.items():
            # A clock advances when a stage ends, which may have begun before the last call. Seconds beyond those that have
            # passed are left for the next call.
            most = [math.inf if name.endswith("_cpu") else passed for name in names]
            new = np.minimum(seconds - self._counted[owner], most)
            self._counted[owner] += new
            fractions |= {
                f"time/{owner}_{name}": part for name, part in zip(names, (new.mean(0) / passed).tolist(), strict=True)
            }
        return fractions
