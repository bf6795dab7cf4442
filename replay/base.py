"""What every replay offers, and the settings of one replay in a mixture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.trajectory import Arrays


@dataclass(frozen=True)
class ReplayConfig:
    """One entry of `--replay_parameters`. capacity: trajectories. sample_ratio: its part of every batch, in (0, 1]."""

    type: str
    capacity: int
    sample_ratio: float


class Replay(ABC):
    """A store of trajectories from which batches are drawn. It copies what it keeps: the slot goes back to the workers."""

    gives_replayed: bool
    """True where a trajectory may be given more than once (its columns are `is_replay`)."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether `insert` loses nothing; where it has none, the trajectory can wait in its slot (backpressure)."""

    @abstractmethod
    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        """Copy one trajectory (`[*shape]` each field) in."""

    @abstractmethod
    def can_sample(self, count: int) -> bool:
        """Whether `sample(count)` has enough to give now."""

    @abstractmethod
    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        """Write `count` trajectories into `out` (`[count, *shape]` each field)."""


def copy_rows(storage: Arrays, rows: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
    """Copy trajectories `rows` of `storage` into `out`, field by field."""
    for name, array in storage.items():
        np.take(array, rows, axis=0, out=out[name], mode="clip")
