"""The batch feeder: takes filled slots from the workers, lets every replay copy them, gives the slots back, draws batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from learner.feeding.host_buffers import HostBuffers
from learner.metrics.statistics import Episode, Record, ended_episodes
from replay.mixture import HostBatch, Mixture
from workers import Block, Workers
from workers.base import block_of

POLL_SECONDS = 0.2

FEEDER_CLOCKS = ("wait_workers", "insert", "sample", "wait_learner")
"""What the feeder's time goes into: waiting for trajectories, copying them into the replays, drawing batches, and waiting
until the learner takes one."""


@dataclass(frozen=True)
class Arrivals:
    """What came in since the batch before: fresh trajectories, and the episodes that ended in them."""

    trajectories: int
    episodes: list[Episode]


@dataclass(frozen=True)
class PreparedBatch:
    """A batch in host memory, and what came in for it.

    starved: whether it had to wait for trajectories. release: to be called once, when nothing reads its memory any more but
    a copy that is done when the fence is, which it takes.
    """

    host: HostBatch
    arrivals: Arrivals
    starved: bool
    release: Callable[..., None]


class Feeder(ABC):
    """Where the learner gets its batches from. seconds: float64 `[len(FEEDER_CLOCKS)]`, added to in place."""

    seconds: np.ndarray

    @property
    @abstractmethod
    def arrived(self) -> int:
        """Fresh trajectories that came in since the batch that was prepared last. Any thread may ask."""

    @abstractmethod
    def start(self) -> None:
        """Begin to prepare batches; the workers must have been started."""

    @abstractmethod
    def next_batch(self, should_stop: Callable[[], bool]) -> PreparedBatch | None:
        """The next batch, waiting for fresh trajectories where needed; None when asked to stop. Raises WorkerError.

        should_stop: asked several times a second meanwhile.
        """

    @abstractmethod
    def stop(self) -> None:
        """End what runs in the background, before the workers are stopped; safe to call at any time and twice."""

    @abstractmethod
    def metrics(self) -> Record:
        """Numbers about what was given since the last call."""


class BatchFeeder(Feeder):
    """Prepares each batch when it is asked for, in the thread that asks.

    Where a replay has no room, trajectories wait in their slots and so do the workers.
    """

    def __init__(self, workers: Workers, mixture: Mixture, buffers: HostBuffers) -> None:
        self.workers = workers
        self.mixture = mixture
        self.buffers = buffers
        self.seconds = np.zeros(len(FEEDER_CLOCKS))
        self._pending: deque[tuple[Block, int]] = deque()  # a block and how many of its trajectories were taken
        self._trajectories = 0
        self._episodes: list[Episode] = []

    @property
    def arrived(self) -> int:
        return self._trajectories

    def start(self) -> None:
        return  # nothing runs in the background

    def next_batch(self, should_stop: Callable[[], bool]) -> PreparedBatch | None:
        starved = False
        self._receive(0.0)
        while not self.mixture.can_sample():
            starved = True
            if should_stop():
                return None
            self._receive(POLL_SECONDS)
        with self.clock("sample"):
            columns = self.buffers.take()
            host = self.mixture.sample(columns)
        arrivals = Arrivals(self._trajectories, self._episodes)
        self._trajectories, self._episodes = 0, []
        return PreparedBatch(host, arrivals, starved, partial(self.buffers.give_back, columns))

    def stop(self) -> None:
        return

    def metrics(self) -> Record:
        return {}

    def state_dict(self) -> dict[str, Any]:
        """To be taken between two calls: blocks that wait in their slots, with the number of trajectories taken of each, and
        what came in since the last batch."""
        return {
            "pending": [[block.worker, block.number, taken] for block, taken in self._pending],
            "trajectories": self._trajectories,
            "episodes": [list(episode) for episode in self._episodes],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        config = self.workers.setup.config
        self._pending = deque((block_of(config, worker, number), taken) for worker, number, taken in state["pending"])
        self._trajectories = state["trajectories"]
        self._episodes = [Episode(*episode) for episode in state["episodes"]]

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the time of one of the FEEDER_CLOCKS."""
        started = perf_counter()
        yield
        self.seconds[FEEDER_CLOCKS.index(name)] += perf_counter() - started

    def _receive(self, timeout: float) -> None:
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
        trajectory = {name: array[slot] for name, array in self.workers.slots.items()}
        self.mixture.insert(trajectory)
        self._trajectories += 1
        self._episodes += ended_episodes(trajectory)
        if taken + 1 == block.slot_count:
            self.workers.release(block)
        else:
            self._pending.appendleft((block, taken + 1))
        return True
