"""The store of all replaying kinds: trajectories by slot, with the time of each slot's insert and its number of draws."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from replay.base import ReplayConfig, ReplayContext
from replay.kinds.selection import candidate_count
from replay.ring.device_storage import DeviceStorage
from replay.ring.growing import GrowingArray
from replay.ring.hindsight import Hindsight
from replay.ring.starts import Starts
from replay.ring.storage import Storage, storage_class
from replay.trajectory import Fields

MOST_HOLES = 1 / 32
"""Empty slots per stored trajectory above which a ring is compacted. Compacting at every hole would take too long."""


class Ring:
    """At most `capacity` trajectories, or as many as fit into the config's `memory`. The mixture's lock protects it.

    With `memory`, one insert may evict several trajectories, because compressed or shared frames differ in size. Their slots
    are compacted later. Compaction moves other trajectories: a stored trajectory may change its slot in `insert`, and nowhere
    else.

    Attributes:
        size: Number of stored trajectories.
        inserted: Number of trajectories offered so far, stored or not.
        draws: `[slots]`, how often each slot was drawn since it was written.
        newest: Environment id -> slot of its newest trajectory, if that is still stored.
        recurrent: Whether trajectories hold a core's state, which is that before row 0.
        index: Rows or trajectories among which a kind draws, if not among all stored trajectories: by default the rows at which
            a window may start, or None if batches are made of whole trajectories.
        hindsight: Gives drawn windows other goals; None without it.

    Args:
        config: The replay's settings.
        context: See ReplayContext.
        retention: Decides which trajectories stay.
        make_index: Returns another index for a number of slots.
    """

    def __init__(
        self,
        config: ReplayConfig,
        context: ReplayContext,
        retention: Retention,
        make_index: Callable[[int], RowIndex] | None = None,
    ) -> None:
        self.capacity = config.capacity
        self.min_fill = max(1, min(context.min_fill, config.capacity))  # never more than fits
        self.generator = context.generator
        self.storage = _make_storage(config, context)
        self.size = 0
        self.inserted = 0
        self.newest: dict[int, int] = {}
        self.unroll_length = context.contract.unroll_length
        self.recurrent = context.contract.state_size > 0
        self._contract = context.contract
        self._retention = retention
        self._growing = [GrowingArray((self.storage.capacity,), "int64") for _ in range(4)]
        self.draws, self._inserted_at, self._slots, self._positions = (growing.array for growing in self._growing)
        self._means = MetricMeans()
        self.index: RowIndex | None = None
        if make_index:
            self.index = make_index(self.storage.capacity)
        elif self._contract.window:
            self.index = Starts(self.storage.capacity, self.unroll_length)
        self.hindsight = Hindsight(config, context, self.storage) if config.hindsight else None

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> int | None:
        """Copy one trajectory in, after evicting as many others as needed. Returns its slot, or None if it was rejected."""
        self.inserted += 1
        if not self._retention.accepts():
            return None
        # Frames are packed first, because their packed size decides how many trajectories must be evicted.
        packed = self.storage.pack(trajectory["frames"])
        while not self.storage.fits(packed):
            if self._must_close_holes():
                self._close_holes()
                continue
            evicted = self._retention.slot_to_evict(self)
            if evicted is None:
                # Evictions before a rejection stand: a reservoir's bar is at or above the evicted keys by then.
                return None
            self._evict(evicted)
        environment = int(trajectory["environment_id"])
        # `newest` is read after the evictions, which may have removed the trajectory that this one follows.
        before = self.newest.get(environment)
        slot = self.storage.write(trajectory, packed, before)
        if self.hindsight:
            self.hindsight.add(slot, before)
        self.newest[environment] = slot
        self.draws[slot] = 0  # of this trajectory, not of the one that was here
        self._inserted_at[slot] = self.inserted
        self._retention.kept(slot)
        self._slots[self.size], self._positions[slot] = slot, self.size
        self.size += 1  # from here on the slot can be drawn; its data is complete
        if self.index:
            self.index.add(slot, self._used[slot])
        return slot

    @property
    def is_ready(self) -> bool:
        return self.inserted >= self.min_fill and (self.index is None or self.index.count > 0)

    @property
    def _used(self) -> np.ndarray:
        """Whether the action of each row was used, bool `[slots, T]`."""
        return self.storage.columns["action_used"]

    @property
    def slots(self) -> np.ndarray:
        """The slots that hold trajectories, int64 `[size]`, in no order."""
        return self._slots[: self.size]

    def ages(self, slots: np.ndarray) -> np.ndarray:
        """Inserts since the trajectories in these slots were written, `[n]`."""
        ages: np.ndarray = self.inserted - self._inserted_at[slots]  # [n]
        return ages

    def uniform(self, count: int) -> np.ndarray:
        """Returns `count` slots drawn uniformly with replacement. Raises RuntimeError before min_fill."""
        self._require_ready()
        return self.slots[self.generator.integers(self.size, size=count)]  # positions without gaps, so one number suffices

    def distinct(self, count: int) -> np.ndarray:
        """Returns `count` slots drawn uniformly without replacement."""
        return self.slots[self.generator.choice(self.size, count, replace=False, shuffle=False)]

    def candidates(self, count: int, multiplier: float) -> np.ndarray:
        """Returns different slots, at least `count` and up to `multiplier * count`.

        If fewer than `count` trajectories are stored, returns `count` slots with replacement. Raises RuntimeError before
        min_fill.
        """
        self._require_ready()
        if self.size < count:
            return self.uniform(count)
        return self.distinct(candidate_count(self.size, count, multiplier))

    def read(self, slots: np.ndarray) -> Fields:
        """Returns copies of the trajectories in these slots."""
        out = self._contract.allocate(len(slots))
        frames = self.storage.read(slots, out)
        return out if frames is None else {**out, "frames": frames}

    def read_window(self, slots: np.ndarray, starts: np.ndarray | int, length: int) -> Fields:
        """Returns copies of consecutive rows of the trajectories in these slots, as trajectories of `length` rows.

        A window has the S-1 frames before its first observation; those from before that observation's episode are black.
        Plain storage reads no other frames. Compressed storage must unpack whole trajectories.

        Args:
            slots: int64 `[n]`.
            starts: First row, for all slots or for each, int64 `[n]`.
            length: Rows of a window, from 1 to T.

        Raises ValueError if a window reaches beyond its trajectory, or has no recurrent state where one is wanted.
        """
        rows = self.unroll_length
        starts = np.broadcast_to(np.asarray(starts, np.int64), slots.shape)
        if length < 1 or ((starts < 0) | (starts + length > rows)).any():
            raise ValueError(
                f"replay: wanted windows within {rows} rows, got {length} rows from starts {starts.min()} to {starts.max()}"
            )
        if self.recurrent and starts.any():
            raise ValueError(f"replay: wanted windows from row 0, whose recurrent state is stored, got start {starts.max()}")
        out = replace(self._contract, unroll_length=length).allocate(len(slots))
        frames = self.storage.read_window(slots, starts, out)
        return out if frames is None else {**out, "frames": frames}

    def give(self, slots: np.ndarray, out: Mapping[str, np.ndarray], distances: np.ndarray | None = None) -> Tensor | None:
        """Copy the trajectories in these slots into `out` and count them as drawn.

        Returns the frames if they are on a device, see `Replay.sample`.

        Args:
            slots: int64 `[n]`.
            out: `[n, *shape]` each field.
            distances: `[n]`, by which the slots were chosen. None if distances played no part in the choice.
        """
        # Most draws are with replacement, so a slot may occur twice, and `draws[slots] += 1` would count it once.
        np.add.at(self.draws, slots, 1)
        self._means.add("age", self.ages(slots))
        self._means.add("draws", self.draws[slots])
        if distances is not None:
            self._means.add("distance", distances)
        return self.storage.read(slots, out)

    def uniform_rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows drawn uniformly with replacement among all stored rows whose action was used, as slots and rows, `[count]` each.

        Raises RuntimeError before min_fill.
        """
        self._require_ready()
        assert isinstance(self.index, Starts)
        return self.index.draw(count, self.generator)

    def give_windows(self, slots: np.ndarray, rows: np.ndarray, out: Mapping[str, np.ndarray]) -> Tensor | None:
        """Copy the windows that start at some rows into `out`, `[n, *shape]` each field, and count their trajectories as drawn.

        A window that reaches beyond its trajectory ends in unused rows, see `Storage.read_window`. Returns frames as `give`
        does. slots, rows: int64 `[n]`.
        """
        np.add.at(self.draws, slots, 1)
        self._means.add("age", self.ages(slots))
        self._means.add("draws", self.draws[slots])
        frames = self.storage.read_window(slots, rows, out)
        if self.hindsight:
            self.hindsight.relabel(slots, rows, out)
        return frames

    def metrics(self) -> dict[str, float]:
        """Returns numbers about the trajectories given since the last call.

        They are the mean age in inserts, the mean and largest number of draws, and the mean distance if there was one.
        """
        return self._means.read()

    def state_dict(self) -> dict[str, Any]:
        slots = self.slots
        return {
            "inserted": self.inserted,
            "newest": dict(self.newest),
            # The order of the slots is part of the state, because random numbers are drawn as positions in it.
            "slots": torch.from_numpy(slots),
            "draws": torch.from_numpy(self.draws[slots]),
            "inserted_at": torch.from_numpy(self._inserted_at[slots]),
            "generator": json.dumps(self.generator.bit_generator.state),
            "retention": self._retention.state_dict(),
            "storage": self.storage.state_dict(),
            **({"index": self.index.state_dict()} if self.index else {}),
            **({"hindsight": self.hindsight.state_dict(slots)} if self.hindsight else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        slots = state["slots"].numpy()
        self.size = len(slots)
        self.inserted = state["inserted"]
        self.newest = dict(state["newest"])
        self._slots[: self.size] = slots
        self._positions[slots] = np.arange(self.size)
        self.draws[slots] = state["draws"].numpy()
        self._inserted_at[slots] = state["inserted_at"].numpy()
        self.generator.bit_generator.state = json.loads(state["generator"])
        self._retention.load_state_dict(state["retention"])
        self.storage.load_state_dict(state["storage"])
        if self.index:
            self.index.load_state_dict(state["index"])
        if self.hindsight:
            self.hindsight.load_state_dict(slots, state["hindsight"])

    def _evict(self, slot: int) -> None:
        environment = int(self.storage.columns["environment_id"][slot])
        if self.newest.get(environment) == slot:
            del self.newest[environment]
        if self.index:
            self.index.remove(slot, self._used[slot])
        if self.hindsight:
            self.hindsight.remove(slot)
        self.storage.evict(slot)
        self.size -= 1
        # The last of the written slots takes the evicted one's position, so that `slots` stays without gaps.
        last, position = self._slots[self.size], self._positions[slot]
        self._slots[position], self._positions[last] = last, position

    def _must_close_holes(self) -> bool:
        """Whether to compact before the next eviction.

        Below `capacity` any hole must go: that many trajectories are promised to fit, and a hole's memory may be what is
        missing. Above it a few holes may stay, so that one compaction serves many inserts.
        """
        return self.storage.holes > (0 if self.size < self.capacity else MOST_HOLES * self.size)

    def _close_holes(self) -> None:
        moved = self.storage.close_holes()
        # Everything that is kept by slot moves too: counters, positions in `slots`, newest trajectories, the retention's order.
        old, new = list(moved), list(moved.values())
        for by_slot in (self.draws, self._inserted_at, self._positions):
            by_slot[new] = by_slot[old]  # the two sets of slots are disjoint
        self._slots[self._positions[new]] = new
        self.newest = {environment: moved.get(slot, slot) for environment, slot in self.newest.items()}
        self._retention.moved(moved)
        if self.index:
            self.index.move(moved, self._used)
            self.index.give_back(self.size)
        if self.hindsight:
            self.hindsight.move(moved, self.size)
        for growing in self._growing:
            growing.give_back(self.size)

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise RuntimeError(f"replay: wanted {self.min_fill} trajectories with a usable row, got {self.inserted} in all")


def _make_storage(config: ReplayConfig, context: ReplayContext) -> Storage:
    if config.device == "cpu":
        return storage_class(config)(context.contract, config.capacity, config.memory)
    return DeviceStorage(context.contract, config.capacity, config.memory, context.device)


class RowIndex(Protocol):
    """An index by which a ring's trajectories are drawn. The ring reports each insert, eviction and move to it.

    count: Number of entries that can be drawn.
    """

    count: int

    def add(self, slot: int, used: np.ndarray) -> None:
        """A trajectory was stored. used: bool `[T]`, whether each row's action was used."""

    def remove(self, slot: int, used: np.ndarray) -> None:
        """A trajectory is evicted. used: as when it was added."""

    def move(self, slots: Mapping[int, int], used: np.ndarray) -> None:
        """Trajectories have changed their slots: old slot -> new slot. used: bool `[slots, T]`, in the new slots."""

    def give_back(self, slots: int) -> None:
        """Return the memory of slot `slots` and all higher ones to the system."""

    def state_dict(self) -> Any:
        """The state that drawing depends on, as tensors, numbers and text."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state_dict()`."""


class Retention(ABC):
    """Decides which trajectories a full ring keeps."""

    def accepts(self) -> bool:
        """Returns whether the next trajectory may be stored at all. The ring asks once for each trajectory."""
        return True

    @abstractmethod
    def slot_to_evict(self, ring: Ring) -> int | None:
        """Returns the slot to evict next, or None to reject the next trajectory instead.

        The ring asks again until the next trajectory fits.
        """

    def kept(self, slot: int) -> None:  # noqa: B027
        """The trajectory that `accepts` was asked about has been stored in this slot."""

    def moved(self, slots: Mapping[int, int]) -> None:  # noqa: B027
        """Trajectories have changed their slots: old slot -> new slot."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from the `state_dict()` of a retention of the same kind."""


class MetricMeans:
    """Sums values by name until their means are read, with the largest number of draws."""

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
