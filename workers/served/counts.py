"""Numbers of a server of clients, in shared memory for the learner's metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from replay.trajectory import Field

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
)
"""Clients and seats are those of now. Latencies are those between a client's message and the answer to it."""
LAYOUT: Mapping[str, Field] = {SERVED: Field((len(NAMES),), "float64")}
RECENT = 4096  # latencies that the percentiles are made of
RECENT_EPISODES = 100


class Counts:
    """What a server counts. `write` copies it into `shared`, float64 `[len(NAMES)]`."""

    def __init__(self, shared: np.ndarray) -> None:
        self._shared = shared
        self.refused = self.cut = self.dropped = self.steps = self.exploit_episodes = 0
        self._latencies: deque[float] = deque(maxlen=RECENT)
        self._exploit_returns: deque[float] = deque(maxlen=RECENT_EPISODES)

    def add_latency(self, seconds: float) -> None:
        """An answer went out so long after the message."""
        self._latencies.append(seconds)

    def exploited(self, episode_return: float, length: int) -> None:
        """A step of a seat that exploits. length: of the episode if it ended, otherwise 0."""
        if length:
            self.exploit_episodes += 1
            self._exploit_returns.append(episode_return)

    def write(self, clients: int, seats: int, refused: int) -> None:
        """Publish all numbers. refused: connections that found no room, beside those refused for their seats."""
        middle, slow = np.percentile(self._latencies, (50, 99)) * 1e3 if self._latencies else (np.nan, np.nan)
        mean = np.mean(self._exploit_returns) if self._exploit_returns else np.nan
        counted = (self.refused + refused, self.cut, self.dropped, middle, slow, self.exploit_episodes, mean, self.steps)
        self._shared[:] = (clients, seats, *counted)

    def status(self) -> dict[str, object]:
        """The numbers for the page of the server."""
        middle, slow = (None if np.isnan(each) else round(float(each), 2) for each in self._shared[5:7])
        return {"steps": self.steps, "latency_ms": {"p50": middle, "p99": slow}}


def read_counts(shared: np.ndarray) -> dict[str, float]:
    """The metrics that a server wrote; those that it does not know yet are left out."""
    return {f"served/{name}": float(value) for name, value in zip(NAMES, shared, strict=True) if not np.isnan(value)}
