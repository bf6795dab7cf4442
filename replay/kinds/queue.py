"""Queue replay: a bounded first-in first-out queue that gives each trajectory at most once, so its columns are fresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from replay.base import Replay, ReplayConfig, ReplayContext
from replay.earlier_files import with_present_names


class QueueReplay(Replay):
    """FIFO of at most `capacity` trajectories. The capacity is at least one batch's share.

    Inserting into a full queue drops its oldest trajectory and counts it in `dropped`. The mixture asks `has_room` first.
    It inserts into a full queue only while another replay is still filling and no batch can be drawn. Afterwards a full
    queue makes the workers wait.
    """

    gives_replayed = False
    takes_others = False

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        self.capacity = max(config.capacity, context.share)  # less than a share could never fill a batch
        self.storage = context.contract.allocate(self.capacity)
        self.first = 0  # slot of the oldest
        self.size = 0
        self.dropped = 0
        self._dropped_before = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "queue", "capacity": self.capacity}

    def has_room(self) -> bool:
        return self.size < self.capacity

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        if not self.has_room():
            self.first = (self.first + 1) % self.capacity
            self.size -= 1
            self.dropped += 1
        slot = (self.first + self.size) % self.capacity  # the place behind the newest
        for name, array in self.storage.items():
            array[slot] = trajectory[name]
        self.size += 1

    def can_sample(self, count: int) -> bool:
        return self.size >= count

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> None:
        if count > self.size:
            raise RuntimeError(f"queue replay: wanted {count} waiting trajectories, got {self.size}")
        slots = (self.first + np.arange(count)) % self.capacity  # [count], oldest first
        for name, array in self.storage.items():
            np.take(array, slots, axis=0, out=out[name], mode="clip")
        self.first = (self.first + count) % self.capacity  # given once: the columns are free at once
        self.size -= count

    def metrics(self) -> dict[str, float]:
        dropped = self.dropped - self._dropped_before
        self._dropped_before = self.dropped
        return {"waiting": float(self.size), "dropped": float(dropped)}

    def state_dict(self) -> dict[str, Any]:
        slots = (self.first + np.arange(self.size)) % self.capacity
        waiting = {name: torch.from_numpy(array[slots]) for name, array in self.storage.items()}
        return {"waiting": waiting, "dropped": self.dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        waiting = with_present_names(state["waiting"])
        self.first, self.size = 0, len(waiting["actions"])  # the state has them in order, so they start at slot 0
        self.dropped = self._dropped_before = state["dropped"]
        for name, array in self.storage.items():
            array[: self.size] = waiting[name].numpy()
