"""The batch feeder takes filled slots from workers, lets every replay copy them, returns the slots, and draws batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from learner.feeding.host_buffers import HostBuffers
from learner.metrics.infos import Sums, added, sums_of
from learner.metrics.statistics import EndedEpisode, Record, ended_episodes
from replay.batch import HostBatch
from replay.mixture import Mixture
from workers import Block, Workers
from workers.base import block_of
from workers.infos import infos_of

POLL_SECONDS = 0.2

FEEDER_CLOCKS = ("wait_workers", "insert", "sample", "wait_learner")
"""Clocks of the feeder: waiting for trajectories, copying them into replays, drawing batches, and waiting for the learner."""


@dataclass(frozen=True)
class Arrivals:
    """Fresh trajectories that arrived since the batch before, the episodes that ended in them, and sums of their infos."""

    trajectories: int
    episodes: list[EndedEpisode]
    infos: Sums = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch in host memory.

    Args:
        host: the batch.
        arrivals: trajectories that arrived for it.
        starved: whether it had to wait for trajectories.
        release: returns its memory; called once. Its argument is a fence behind the last copy that reads the memory.
    """

    host: HostBatch
    arrivals: Arrivals
    starved: bool
    release: Callable[..., None]


class Feeder(ABC):
    """Gives the learner its batches. seconds: float64 `[len(FEEDER_CLOCKS)]`, added to in place."""

    seconds: np.ndarray

    @property
    @abstractmethod
    def arrived(self) -> int:
        """Fresh trajectories that arrived since the last batch was prepared. Safe to read in any thread."""

    @abstractmethod
    def start(self) -> None:
        """Begin to prepare batches. The workers must have been started."""

    @abstractmethod
    def next_batch(self, should_stop: Callable[[], bool]) -> PreparedBatch | None:
        """The next batch, or None when asked to stop. Waits for fresh trajectories if needed. Raises WorkerError.

        should_stop: called several times a second while it waits.
        """

    def release_held(self) -> None:  # noqa: B027  (only on-policy agents hold any)
        """Give back the slots that were held until new weights were published."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the background thread, before the workers are stopped. Safe to call at any time, and twice."""

    @abstractmethod
    def metrics(self) -> Record:
        """Metrics of the batches since the last call."""


class BatchFeeder(Feeder):
    """Prepares each batch when it is asked for, in the calling thread.

    If a replay has no room, trajectories wait in their slots, and workers wait for free slots.

    hold_slots: whether slots go back only at `release_held`. So no worker begins a trajectory before it can act with the
    weights that were learned from the one before (on-policy agents).
    """

    def __init__(self, workers: Workers, mixture: Mixture, buffers: HostBuffers, *, hold_slots: bool = False) -> None:
        self._hold_slots = hold_slots
        self._held: list[Block] = []  # blocks whose trajectories are all inserted
        self.workers = workers
        self.mixture = mixture
        self.buffers = buffers
        self.seconds = np.zeros(len(FEEDER_CLOCKS))
        self._pending: deque[tuple[Block, int]] = deque()  # block, and how many of its trajectories were inserted
        self._trajectories = 0
        self._episodes: list[EndedEpisode] = []
        self._infos: Sums = {}

    @property
    def arrived(self) -> int:
        return self._trajectories

    def start(self) -> None:
        return  # nothing runs in the background

    def next_batch(self, should_stop: Callable[[], bool]) -> PreparedBatch | None:
        starved = False
        # Arrived trajectories are inserted first, even if a batch could be drawn, so that their slots go back early.
        self._receive(0.0)
        while not self.mixture.can_sample():
            starved = True
            if should_stop():
                return None
            self._receive(POLL_SECONDS)
        with self.clock("sample"):
            columns = self.buffers.take()
            host = self.mixture.sample(columns)
        # Arrivals travel with their batch: counters must match the batches that the loop has taken, not those prepared.
        arrivals = Arrivals(self._trajectories, self._episodes, self._infos)
        self._trajectories, self._episodes, self._infos = 0, [], {}
        return PreparedBatch(host, arrivals, starved, partial(self.buffers.give_back, columns))

    def release_held(self) -> None:
        held, self._held = self._held, []
        for block in held:
            self.workers.release(block)

    def stop(self) -> None:
        return

    def metrics(self) -> Record:
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Blocks that wait in their slots, with the trajectories inserted of each, and arrivals since the last batch.

        Only valid between two calls of `next_batch`.
        """
        return {
            "pending": [[block.worker, block.number, taken] for block, taken in self._pending],
            "held": [[block.worker, block.number] for block in self._held],
            "trajectories": self._trajectories,
            "episodes": [list(episode) for episode in self._episodes],
            "infos": {name: list(pair) for name, pair in self._infos.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        config = self.workers.setup.config
        self._pending = deque((block_of(config, worker, number), taken) for worker, number, taken in state["pending"])
        self._held = [block_of(config, worker, number) for worker, number in state.get("held", [])]  # earlier files have none
        self._trajectories = state["trajectories"]
        self._episodes = [EndedEpisode(*episode) for episode in state["episodes"]]
        self._infos = {name: (total, count) for name, (total, count) in state.get("infos", {}).items()}

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the time of a stage, one of `FEEDER_CLOCKS`."""
        started = perf_counter()
        yield
        self.seconds[FEEDER_CLOCKS.index(name)] += perf_counter() - started

    def _receive(self, timeout: float) -> None:
        # While a block waits for room, another one could only wait too, and a serial worker would have to play it now.
        if not self._pending:
            with self.clock("wait_workers"):
                self._pending.extend((block, 0) for block in self.workers.poll(timeout))
        with self.clock("insert"):
            while self._pending and self._take_one():
                pass

    def _take_one(self) -> bool:
        if not self.mixture.can_insert():
            return False
        block, taken = self._pending.popleft()
        slot = block.first_slot + taken
        # These are views of shared memory: every replay copies what it keeps before the slots go back.
        trajectory = {name: array[slot] for name, array in self.workers.slots.items()}
        self.mixture.insert(trajectory)
        self._trajectories += 1
        infos = infos_of(trajectory)
        self._episodes += ended_episodes(trajectory, infos)
        if infos:
            self._infos = added((self._infos, sums_of(infos)))
        # Slots go back as a whole block, because a worker fills all slots of a block together.
        if taken + 1 == block.slot_count:
            if self._hold_slots:
                self._held.append(block)
            else:
                self.workers.release(block)
        else:
            self._pending.appendleft((block, taken + 1))
        return True
