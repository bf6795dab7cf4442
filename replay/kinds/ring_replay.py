"""The common part of the replaying kinds, which keep a ring and differ in how `sample` draws from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from replay.base import Replay, ReplayConfig, ReplayContext
from replay.ring.retention import make_ring
from replay.ring.ring import RowIndex

HINDSIGHT_KEYS = ("hindsight", "reward_function")
"""Keys of the kinds that can draw windows with other goals (`replay.ring.hindsight`)."""


class RingReplay(Replay):
    """A replay on a ring. It gives nothing before `min_fill` trajectories were inserted."""

    keys: ClassVar[tuple[str, ...]] = ("device",)
    gives_replayed = True

    def __init__(
        self, config: ReplayConfig, context: ReplayContext, make_index: Callable[[int], RowIndex] | None = None
    ) -> None:
        self.config = config
        self.ring = make_ring(config, context, make_index)

    @property
    def settings(self) -> dict[str, Any]:
        names = ("type", "capacity", "memory", "compress", "retention", "insert_strategy")
        # Only where it is used: states of earlier versions do not name it.
        hindsight = {"hindsight": self.config.hindsight} if self.config.hindsight else {}
        return {**{name: getattr(self.config, name) for name in names}, **hindsight}

    def has_room(self) -> bool:
        return True  # a full ring evicts

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        self.ring.insert(trajectory)

    def can_sample(self, count: int) -> bool:
        return self.ring.is_ready  # whatever the count: draws are with replacement

    def metrics(self) -> dict[str, float]:
        return self.ring.metrics()

    def state_dict(self) -> dict[str, Any]:
        return self.ring.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state)
