"""Circular replay: N slots of one batch each, and K uses of each batch, in a fixed order (IMPACT, arXiv:1912.00167).

Update u looks at slot u mod N. An empty slot first takes the next fresh batch. A batch is dropped after its K uses. Staggered,
the first batches get 1, 2, .. K uses, so that slots do not run empty together. Nothing is drawn at random.
Alone in its mixture, a circular replay loses no trajectory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay.base import Replay, ReplayConfig, ReplayContext
from replay.ring.ring import Retention, Ring


class Spent(Retention):
    """Evicts the trajectories that have been given for the last time. slots: those of the ring, in the order of their end."""

    def __init__(self) -> None:
        self.slots: deque[int] = deque()

    def slot_to_evict(self, ring: Ring) -> int:
        return self.slots.popleft()

    def state_dict(self) -> dict[str, Any]:
        return {"spent": torch.tensor(self.slots, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slots = deque(state["spent"].tolist())


class CircularReplay(Replay):
    """Gives each batch `uses` times. The columns are replayed ones from the second time on.

    One more batch may wait for its slot. Then the replay has no room, and workers wait. Inserting in spite of it drops the
    oldest waiting trajectory and counts it in `dropped`; the mixture does so only while another replay must have more to give.

    The ring holds all trajectories. It never has to evict one that is still needed: its capacity is that of all slots and of
    the waiting batch. With a capacity in trajectories it is never compacted, so the numbers of its slots stay.

    Args:
        config: Settled: with slots and uses, and a capacity of slots + 1 batches.
        context: See ReplayContext.
    """

    keys = ("slots", "uses", "staggered", "device")
    takes_others = False  # each batch is fresh at its first use

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        self.config = config
        self.gives_replayed = False
        self.share = config.capacity // (config.slots + 1)  # columns of a batch; one batch more than slots may wait
        self._spent = Spent()
        self.ring = Ring(config, context, self._spent)
        self._waiting: deque[int] = deque()  # slots of the ring, oldest first
        self._held = np.full((config.slots, self.share), -1)  # [N, share], slots of the ring; -1 in an empty slot
        self._uses_left = np.zeros(config.slots, np.int64)  # [N], 0 for an empty slot
        self._update = 0  # u, which decides the slot: u mod N
        self._taken = 0  # fresh batches
        self._dropped = self._dropped_before = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in ("type", "slots", "uses", "staggered", "compress")}

    def has_room(self) -> bool:
        return len(self._waiting) < self.share

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        if not self.has_room():
            # The dropped trajectory counts as spent before the insert, because a full ring may have nothing else to evict.
            self._spent.slots.append(self._waiting.popleft())
            self._dropped += 1
        slot = self.ring.insert(trajectory)
        assert slot is not None
        self._waiting.append(slot)

    def can_sample(self, count: int) -> bool:
        return self._uses_left[self._slot] > 0 or not self.has_room()  # used before, or a whole fresh batch waits

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        if count != self.share or not self.can_sample(count):
            raise RuntimeError(
                f"circular replay: wanted to give {self.share} trajectories of a slot or of those that wait, got a request for "
                f"{count} while {len(self._waiting)} wait"
            )
        slot = self._slot
        self.gives_replayed = bool(self._uses_left[slot])  # false for the first use only: is_replay of the columns
        if not self.gives_replayed:
            self._take_fresh(slot)
        frames = self.ring.give(self._held[slot], out)
        self._uses_left[slot] -= 1
        if not self._uses_left[slot]:
            # The batch is copied by now, so the ring may evict these trajectories.
            self._spent.slots.extend(self._held[slot].tolist())
            self._held[slot] = -1
        self._update += 1
        return frames

    def metrics(self) -> dict[str, float]:
        dropped = self._dropped - self._dropped_before
        self._dropped_before = self._dropped
        return {**self.ring.metrics(), "waiting": float(len(self._waiting)), "dropped": float(dropped)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "ring": self.ring.state_dict(),
            "waiting": torch.tensor(self._waiting, dtype=torch.int64),
            "held": torch.from_numpy(self._held.copy()),
            "uses_left": torch.from_numpy(self._uses_left.copy()),
            "update": self._update,
            "taken": self._taken,
            "dropped": self._dropped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])
        self._waiting = deque(state["waiting"].tolist())
        self._held[:], self._uses_left[:] = state["held"].numpy(), state["uses_left"].numpy()
        self._update, self._taken = state["update"], state["taken"]
        self._dropped = self._dropped_before = state["dropped"]

    @property
    def _slot(self) -> int:
        """The slot of the next update."""
        return self._update % self.config.slots  # a fixed order, so a resume is exact

    def _take_fresh(self, slot: int) -> None:
        """Move the waiting batch into an empty slot."""
        self._held[slot] = [self._waiting.popleft() for _ in range(self.share)]
        self._taken += 1
        # The first batches get 1, 2, .. K uses.
        self._uses_left[slot] = min(self._taken, self.config.uses) if self.config.staggered else self.config.uses
