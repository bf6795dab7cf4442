"""The rows of a ring at which a window may start, kept so that drawing one takes one random number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from replay.ring.growing import GrowingArray

START_BYTES = 16
"""Bytes that a row takes in addition to its fields: its number in the list of starts, and its place in that list."""


class Starts:
    """A list without gaps of all rows in the stored trajectories whose action was used.

    An entry is the number slot * T + row. The last entry takes the place of a removed one, so every row is equally probable,
    whatever was inserted and evicted before.

    Attributes:
        count: Number of rows in the list.

    Args:
        slots: Most slots of the ring.
        unroll_length: T.
    """

    def __init__(self, slots: int, unroll_length: int) -> None:
        self.count = 0
        self._unroll_length = unroll_length
        self._growing = [GrowingArray((slots * unroll_length,), "int64") for _ in range(2)]
        self._rows, self._places = (growing.array for growing in self._growing)  # inverse to each other

    def add(self, slot: int, used: np.ndarray) -> None:
        """Add the rows of a slot. used: bool `[T]`, whether each row's action was used."""
        rows = self._numbers(slot, used)
        end = self.count + len(rows)
        self._rows[self.count : end] = rows
        self._places[rows] = np.arange(self.count, end)  # where each row stands, so that `remove` need not search
        self.count = end

    def remove(self, slot: int, used: np.ndarray) -> None:
        """Remove the rows of a slot. used: as when they were added."""
        places = self._places[self._numbers(slot, used)]
        count = self.count - len(places)
        # The last rows move into the places below that become empty. Those among them that are removed too stay behind.
        stays = np.ones(len(places), bool)
        stays[places[places >= count] - count] = False  # bool [removed]: places behind the new end
        empty, moved = places[places < count], self._rows[count : self.count][stays]
        self._rows[empty] = moved
        self._places[moved] = empty
        self.count = count

    def move(self, slots: Mapping[int, int], used: np.ndarray) -> None:
        """Trajectories have changed their slots: old slot -> new slot. used: bool `[slots, T]`, in the new slots."""
        for old, new in slots.items():
            rows, before = self._numbers(new, used[new]), self._numbers(old, used[new])
            # Each row keeps its place in the list, so compaction does not change what the next random numbers draw.
            places = self._places[before]
            self._rows[places], self._places[rows] = rows, places

    def give_back(self, slots: int) -> None:
        """Return the memory of slot `slots` and all higher ones to the system."""
        for growing in self._growing:
            growing.give_back(slots * self._unroll_length)

    def draw(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows uniformly with replacement. Returns their slots and their rows in the trajectory, int64 `[count]` each."""
        numbers = self._rows[generator.integers(self.count, size=count)]  # slot * T + row, [count]
        return np.divmod(numbers, self._unroll_length)

    def state_dict(self) -> Tensor:
        """The list in its order, which decides what the next numbers draw."""
        return torch.from_numpy(self._rows[: self.count])

    def load_state_dict(self, rows: Tensor) -> None:
        self.count = len(rows)
        self._rows[: self.count] = rows.numpy()
        self._places[self._rows[: self.count]] = np.arange(self.count)  # derived from the list

    def _numbers(self, slot: int, used: np.ndarray) -> np.ndarray:
        return slot * self._unroll_length + np.flatnonzero(used)  # a row without a used action is no start
