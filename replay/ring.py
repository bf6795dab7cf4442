"""The store of all replaying kinds: a ring of trajectories, and of each slot when it was written and how often drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from replay.base import ReplayConfig, ReplayContext, copy_rows
from replay.selection import candidate_count
from replay.trajectory import Arrays


class Ring:
    """At most `capacity` trajectories; one thread writes and draws.

    retention: the slot that the next trajectory goes to, None where it is not kept; it is asked for every trajectory.
    draws: `[capacity]`, how often each slot was drawn since it was written. inserted: trajectories offered so far.
    """

    def __init__(self, config: ReplayConfig, context: ReplayContext, retention: Retention) -> None:
        self.capacity = config.capacity
        self.min_fill = max(1, min(context.min_fill, config.capacity))
        self.generator = context.generator
        self.storage = context.contract.allocate(config.capacity)
        self.size = 0
        self.inserted = 0
        self.draws = np.zeros(config.capacity, np.int64)
        self._retention = retention
        self._inserted_at = np.zeros(config.capacity, np.int64)
        self._tally = Tally()

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> int | None:
        """Copy one trajectory in. Returns its slot, None where it was not kept."""
        row = self._retention(self)
        self.inserted += 1
        if row is None:
            return None
        for name, array in self.storage.items():
            array[row] = trajectory[name]
        self.draws[row] = 0
        self._inserted_at[row] = self.inserted
        self.size = max(self.size, row + 1)  # published only now that its data is written
        return row

    @property
    def is_ready(self) -> bool:
        return self.size >= self.min_fill

    def uniform(self, count: int) -> np.ndarray:
        """`count` slots, each of them any written one. Raises RuntimeError before min_fill."""
        self._require_ready()
        return self.generator.integers(self.size, size=count)

    def distinct(self, count: int) -> np.ndarray:
        """`count` different written slots."""
        return self.generator.choice(self.size, count, replace=False, shuffle=False)

    def candidates(self, count: int, multiplier: float) -> np.ndarray:
        """Different slots, at least `count` and up to `multiplier` times as many; `uniform` where fewer are stored."""
        self._require_ready()
        if self.size < count:
            return self.uniform(count)
        return self.distinct(candidate_count(self.size, count, multiplier))

    def read(self, rows: np.ndarray) -> Arrays:
        """Copies of the trajectories in these slots."""
        return {name: array[rows] for name, array in self.storage.items()}

    def give(self, rows: np.ndarray, out: Mapping[str, np.ndarray], distances: np.ndarray | None = None) -> None:
        """Copy these slots into `out` and count them as drawn. distances `[len(rows)]`: those they were chosen by."""
        copy_rows(self.storage, rows, out)
        np.add.at(self.draws, rows, 1)
        self._tally.add("age", self.inserted - self._inserted_at[rows])
        self._tally.add("draws", self.draws[rows])
        if distances is not None:
            self._tally.add("distance", distances)

    def metrics(self) -> dict[str, float]:
        """Of what was given since the last call: mean age in inserts, mean and largest number of draws, mean distance."""
        return self._tally.read()

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise RuntimeError(f"replay: wanted {self.min_fill} trajectories before sampling, has {self.size}")


Retention = Callable[[Ring], int | None]


class Tally:
    """Means by name, and the largest number of draws, until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._most_draws = 0

    def add(self, name: str, values: np.ndarray) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._counts[name] = self._counts.get(name, 0) + len(values)
        if name == "draws":
            self._most_draws = max(self._most_draws, int(values.max()))

    def read(self) -> dict[str, float]:
        numbers = {name: total / self._counts[name] for name, total in self._sums.items()}
        if numbers:
            numbers["draws_max"] = float(self._most_draws)
        self._sums, self._counts, self._most_draws = {}, {}, 0
        return numbers
