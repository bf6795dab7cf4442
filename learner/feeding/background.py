"""Prepares batches ahead: a thread runs the batch feeder while the learner updates, and hands over finished batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from learner.feeding.depth import PreparationDepth
from learner.feeding.feeder import POLL_SECONDS, BatchFeeder, Feeder, PreparedBatch
from learner.feeding.host_buffers import HostBuffers
from learner.metrics.statistics import Record
from replay import Mixture
from workers import Workers


def make_feeder(workers: Workers, mixture: Mixture, prepared_batches: int, *, pinned: bool, hold_slots: bool = False) -> Feeder:
    """The feeder of a run.

    Args:
        workers: where trajectories come from.
        mixture: where they are stored and batches are drawn.
        prepared_batches: the most batches that are prepared ahead; 0 prepares each when the learner asks for it.
        pinned: keep batches in page-locked memory.
        hold_slots: see `BatchFeeder`.
    """
    buffers = HostBuffers(mixture.contract, mixture.batch_size, pinned=pinned)
    feeder = BatchFeeder(workers, mixture, buffers, hold_slots=hold_slots)
    return BackgroundFeeder(feeder, prepared_batches) if prepared_batches else feeder


class BackgroundFeeder(Feeder):
    """Runs `feeder` in its own thread. Only that thread polls workers, inserts and samples.

    The thread pauses while as many batches as `depth` says are ready; trajectories then wait in their slots. An error of the
    thread is raised by `next_batch`, with the thread's traceback.
    """

    def __init__(self, feeder: BatchFeeder, most: int) -> None:
        self.depth = PreparationDepth(most)
        self.seconds = feeder.seconds
        self._feeder = feeder
        self._thread = threading.Thread(target=self._prepare, name="feeder", daemon=True)
        self._changed = threading.Condition()  # guards all fields below
        self._prepared: deque[PreparedBatch] = deque()
        self._error: BaseException | None = None
        self._stopping = False
        self._taken = self._late = 0

    @property
    def arrived(self) -> int:
        return self._feeder.arrived

    def start(self) -> None:
        self._thread.start()

    def next_batch(self, should_stop: Callable[[], bool]) -> PreparedBatch | None:
        with self._changed:
            waited = not self._prepared
            while self._error or not self._prepared:
                if self._error:
                    raise self._error
                if should_stop():
                    return None
                self._changed.wait(POLL_SECONDS)
            batch = self._prepared.popleft()
            # A batch that waited for trajectories would not have come earlier with a greater depth.
            late = waited and not batch.starved
            self.depth.take(len(self._prepared), late=late)
            self._taken += 1
            self._late += late
            self._changed.notify()
        return batch

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def metrics(self) -> Record:
        """The depth in use, and the fraction of batches that came late although their data was there."""
        record = {"feeder/depth": float(self.depth.now)}
        if self._taken:
            record["feeder/late_fraction"] = self._late / self._taken
        self._taken = self._late = 0
        return record

    def _prepare(self) -> None:
        try:
            while self._wait_for_room():
                # The lock is not held here, so that the learner can take finished batches meanwhile.
                batch = self._feeder.next_batch(lambda: self._stopping)
                with self._changed:
                    if batch:
                        self._prepared.append(batch)
                    self._changed.notify()
        except BaseException as error:  # the learner's thread raises it
            with self._changed:
                self._error = error
                self._changed.notify()

    def _wait_for_room(self) -> bool:
        """Wait until there is room for another batch. Returns False when asked to stop."""
        with self._changed, self._feeder.clock("wait_learner"):
            self._changed.wait_for(lambda: self._stopping or len(self._prepared) < self.depth.now)
            return not self._stopping
