"""Numbers of a server of clients. They lie in shared memory, for the learner's metrics and for the next process of this run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from replay.trajectory import Field
from serve.session import RECENT_EPISODES
from workers.served.histograms import HISTOGRAM_LAYOUT, HistogramWriter

SERVED = "served"
NAMES = (
    "clients",
    "seats",
    "refused",
    "episodes_cut",
    "rows_dropped",
    "latency_p50_ms",
    "latency_p99_ms",
    "exploit_episodes",
    "exploit_return_mean",
    "steps",
    "episodes",
)
"""Clients and seats are those of now. Latencies are those between a client's message and the answer to it."""
GROWING = np.isin(NAMES, ("refused", "episodes_cut", "rows_dropped", "exploit_episodes", "steps", "episodes"))
CURVE, SPAN, FINISHED = "served_curve", "served_span", "served_finished"
POINTS = 256
LAYOUT: Mapping[str, Field] = {
    SERVED: Field((len(NAMES),), "float64"),
    CURVE: Field((2, POINTS), "float64"),
    SPAN: Field((1,), "int64"),
    FINISHED: Field((1,), "bool"),
    **HISTOGRAM_LAYOUT,
}
FIRST_SPAN = 50  # steps
EPISODES_OF_A_POINT = 10  # at least, so that the curve is not that of single episodes
RECENT = 32_768  # latencies that the percentiles are made of: several on-policy updates, each of which all clients wait for


class ReturnCurve:
    """The learning curve: the mean return of the episodes that ended in each of at most `POINTS` equal spans of steps.

    Once the last span is full, each two neighbours become one.

    Args:
        arrays: those of `LAYOUT`. They hold the curve of an earlier process of this run.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._sums, self._counts = arrays[CURVE]
        self._span = arrays[SPAN]
        if not self._span[0]:
            self._span[0] = FIRST_SPAN

    def add(self, step: int, episode_return: float) -> None:
        """An episode ended after so many steps."""
        while step >= POINTS * self._span[0]:
            for values in (self._sums, self._counts):
                values[: POINTS // 2] = values.reshape(-1, 2).sum(axis=1)
                values[POINTS // 2 :] = 0
            self._span[0] *= 2
        place = step // int(self._span[0])
        self._sums[place] += episode_return
        self._counts[place] += 1

    def points(self, first_step: int, step: int) -> list[list[float]]:
        """Points of steps and mean return. Each is of so many spans that they have `EPISODES_OF_A_POINT` episodes.

        first_step: of the run, before step 0. step: of now.
        """
        points: list[list[float]] = []
        total = count = 0.0
        for place in np.flatnonzero(self._counts).tolist():
            total, count = total + self._sums[place], count + self._counts[place]
            if count >= EPISODES_OF_A_POINT:
                end = min((place + 1) * int(self._span[0]), step)
                points.append([first_step + end, round(float(total / count), 4)])
                total = count = 0.0
        return points


class Counts:
    """The counts of a server. `write` copies it into shared memory.

    Args:
        arrays: those of `LAYOUT`. They hold the numbers of an earlier process of this run, which ended early.
        first_step: steps of the run before this command.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], first_step: int = 0) -> None:
        self._shared, self._first_step = arrays[SERVED], first_step
        self._before = np.where(GROWING, self._shared, 0.0)
        self._curve = ReturnCurve(arrays)
        self.histograms = HistogramWriter(arrays)
        self.cut = self.dropped = self.steps = self.episodes = self.exploit_episodes = 0
        self._latencies = np.zeros(RECENT, np.float32)  # a ring
        self._answers = 0
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._exploit_returns: deque[float] = deque(maxlen=RECENT_EPISODES)

    def add_latency(self, seconds: float) -> None:
        """An answer went out so long after the message."""
        self._latencies[self._answers % RECENT] = seconds
        self._answers += 1

    def exploited(self, episode_return: float, length: int) -> None:
        """A step of a seat that exploits. length: of the episode if it ended, otherwise 0."""
        if length:
            self.exploit_episodes += 1
            self._exploit_returns.append(episode_return)

    def ended(self, episode_return: float) -> None:
        """An episode of a seat that is learned from has ended."""
        self.episodes += 1
        self._returns.append(episode_return)
        self._curve.add(self._all("steps", self.steps), episode_return)

    def _all(self, name: str, own: int) -> int:
        """A number that grows, with that of earlier processes."""
        return int(self._before[NAMES.index(name)]) + own

    def write(self, clients: int, seats: int, refused: int) -> None:
        """Publish all numbers. refused: connections that found no room or too few free seats."""
        recent = self._latencies[: self._answers]
        middle, slow = np.percentile(recent, (50, 99)) * 1e3 if self._answers else (np.nan, np.nan)
        mean = np.mean(self._exploit_returns) if self._exploit_returns else np.nan
        counted = (refused, self.cut, self.dropped, middle, slow, self.exploit_episodes, mean)
        own = np.array((clients, seats, *counted, self.steps, self.episodes), np.float64)
        self._shared[:] = self._before + own

    def status(self) -> dict[str, object]:
        """The numbers for the page of the server."""
        latency = {name: self._shared[NAMES.index(f"latency_{name}_ms")] for name in ("p50", "p99")}
        steps = self._all("steps", self.steps)
        return {
            "steps": self._first_step + steps,
            "episodes": self._all("episodes", self.episodes),
            "return_mean": round(float(np.mean(self._returns)), 4) if self._returns else None,
            "latency_ms": {name: None if np.isnan(each) else round(float(each), 2) for name, each in latency.items()},
            "curve": self._curve.points(self._first_step, steps),
        }


def read_counts(shared: np.ndarray) -> dict[str, float]:
    """The metrics that a server wrote; those that it does not know yet are left out."""
    return {f"served/{name}": float(value) for name, value in zip(NAMES, shared, strict=True) if not np.isnan(value)}
