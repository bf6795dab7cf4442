"""Statistics of the numbers that environments report in `info`, such as `is_success`, `cost` or `x_velocity`.

`info/NAME_at_end` is the value of an episode's last step, as the mean over episodes. `info/NAME_mean` is the mean over steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from wrappers.infos import MOST_NAMES, Infos

log = logging.getLogger("springbok")

PREFIX, AT_END, MEAN = "info/", "_at_end", "_mean"
SUCCESS = ("is_success", "success")
"""Names whose value at the end of episodes is the rate of success, the first one that there is."""

Ends = Mapping[str, float]
"""Name -> value at an episode's last step."""
Sums = dict[str, tuple[float, int]]
"""Name -> sum over steps, and number of steps. The number is 0 for a name that is known but not recorded."""


def row_of(infos: Infos, index: int) -> dict[str, float]:
    """The finite numbers of one row."""
    row = infos.values[index]
    return {name: float(row[column]) for column, name in enumerate(infos.names[:MOST_NAMES]) if np.isfinite(row[column])}


def sums_of(infos: Infos) -> Sums:
    """The sums of the finite numbers over all rows."""
    finite = np.isfinite(infos.values)
    with np.errstate(over="ignore"):  # an infinite mean is left out
        totals = np.where(finite, infos.values, 0.0).sum(0).tolist()
    recorded = zip(infos.names, totals, finite.sum(0).tolist(), strict=False)
    return {**dict.fromkeys(infos.names, (0.0, 0)), **{name: (total, count) for name, total, count in recorded}}


def added(sums: Iterable[Mapping[str, tuple[float, int]]]) -> Sums:
    """The sums of all together."""
    total: Sums = {}
    for each in sums:
        for name, (value, count) in each.items():
            before, counted = total.get(name, (0.0, 0))
            total[name] = before + value, counted + count
    return total


def means(ends: Iterable[Ends], sums: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """`NAME_at_end`, the mean over the episodes that have the name, and `NAME_mean`, the mean over steps; finite ones only."""
    last = added({name: (value, 1) for name, value in each.items()} for each in ends)
    pairs = [(f"{name}{suffix}", *pair) for suffix, part in ((AT_END, last), (MEAN, sums)) for name, pair in part.items()]
    found = {name: total / count for name, total, count in pairs if count}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def note_left_out(names: Sequence[str]) -> None:
    """Log which names are left out."""
    log.info("info: %d numbers are recorded; left out: %s", MOST_NAMES, ", ".join(names))


def success_rate(found: Mapping[str, float]) -> float | None:
    """The rate of success among `means`; None if the environment reports none."""
    return next((found[f"{name}{AT_END}"] for name in SUCCESS if f"{name}{AT_END}" in found), None)


class RunningInfos:
    """Adds up the numbers of the running episodes of N environments."""

    def __init__(self, num_envs: int) -> None:
        self._totals = np.zeros((num_envs, MOST_NAMES))
        self._counts = np.zeros((num_envs, MOST_NAMES), np.int64)

    def add(self, infos: Infos | None) -> None:
        """Add a step of every environment."""
        if infos:
            finite = np.isfinite(infos.values)
            self._totals += np.where(finite, infos.values, 0.0)
            self._counts += finite

    def end(self, infos: Infos | None, index: int) -> tuple[Ends, Sums]:
        """The numbers of the last step of environment `index`, and the sums of its episode. The next one begins with 0."""
        if not infos:
            return {}, {}
        pairs = zip(infos.names, self._totals[index].tolist(), self._counts[index].tolist(), strict=False)
        sums = {**dict.fromkeys(infos.names, (0.0, 0)), **{name: (total, count) for name, total, count in pairs}}
        self._totals[index], self._counts[index] = 0.0, 0
        return row_of(infos, index), sums


class InfoStatistics:
    """The numbers of a run's infos. window: episodes of the mean at the end of episodes.

    At most `MOST_NAMES` names are reported, also if each environment has other ones. One line says which are left out.
    """

    def __init__(self, window: int) -> None:
        self.recent: deque[Ends] = deque(maxlen=window)
        self._sums: Sums = {}
        self._names: list[str] = []
        self._left_out: list[str] = []
        self._told = False

    def add(self, ends: Sequence[Ends], sums: Mapping[str, tuple[float, int]]) -> None:
        """Add the last values of episodes, and sums over steps."""
        for name in (*sums, *(name for each in ends for name in each)):
            if name not in self._names and name not in self._left_out:
                (self._names if len(self._names) < MOST_NAMES else self._left_out).append(name)
        if self._left_out and not self._told:
            self._told = True
            note_left_out(self._left_out)
        self.recent.extend({name: value for name, value in each.items() if name in self._names} for each in ends)
        self._sums = added((self._sums, {name: pair for name, pair in sums.items() if name in self._names}))

    @property
    def at_end(self) -> dict[str, float]:
        """`NAME_at_end`: means over the last `window` episodes."""
        return means(self.recent, {})

    def read(self) -> dict[str, float]:
        """`info/*`: means over the window, and over the steps since the last call."""
        found = means(self.recent, self._sums)
        self._sums = {}
        return {f"{PREFIX}{name}": value for name, value in found.items()}
