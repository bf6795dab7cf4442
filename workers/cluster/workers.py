"""The ray kind: as `cpu`, but the workers are actors of a Ray cluster, on this machine or others.

Everything below the arena is that of `cpu`: a filled block arrives in local slots, so replays, batches and agents see no
difference. A lost actor, or all actors of a lost node, count as one failure of the same restart budget.
"""

from __future__ import annotations

import logging
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import monotonic
from typing import Any

import ray

from agents.networks.base import FeatureNetwork
from workers.base import WorkerError, WorkerSetup
from workers.cluster.connection import connect, disconnect
from workers.cluster.handle import ActorHandle, Event
from workers.processes.handle import Handle
from workers.processes.heartbeat import Heartbeat
from workers.processes.supervisor import ProcessWorkers
from workers.weights import SharedWeights, weights_layout

log = logging.getLogger("springbok")

NETWORK_SECONDS = 30.0
"""Room for the network, added to the time that a whole trajectory may take (`worker_timeout` a step)."""

NOTE_SECONDS = 30.0  # between two lines about actors that the cluster has no room for
BLOCKS_UNDER_WAY = 2  # of an actor: one is copied while it fills the next
VERSIONS_UNDER_WAY = 8  # of weights that actors still hold


class RayWorkers(ProcessWorkers):
    """Actors of a Ray cluster that step environments and act with their own copy of the policy."""

    def __init__(self, setup: WorkerSetup, network: FeatureNetwork) -> None:
        super().__init__(setup, weights_layout(network), SharedWeights)
        self._connected = False
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._dispatcher = threading.Thread(target=self._run_events, name="events of the actors", daemon=True)
        self._newest: tuple[ray.ObjectRef[Any], int] | None = None
        self._noted_at = monotonic()

    def stop(self) -> None:
        super().stop()  # first: the end of the actors is an event too
        if self._dispatcher.is_alive():
            self._events.put(None)
            self._dispatcher.join()
        if self._connected:
            self._newest = None
            disconnect()
            self._connected = False

    def kill(self) -> None:
        self._ending = True  # the actors end with this process: Ray sees its death

    def _start_launcher(self) -> None:
        config, contract = self.setup.config, self.setup.contract
        blocks = BLOCKS_UNDER_WAY * config.environments * contract.bytes_per_trajectory
        self._connected = connect(config, blocks + VERSIONS_UNDER_WAY * self.shared.arrays["weights"][0].nbytes)
        self._dispatcher.start()

    def _spawn(self, worker: int, seed: int, policy_pipes: tuple[Connection, ...] = ()) -> Handle:
        timeout = NETWORK_SECONDS + self._timeout * self.setup.contract.unroll_length
        heartbeat = Heartbeat(
            self._busy_seconds(worker), monotonic(), timeout=timeout, start_timeout=NETWORK_SECONDS + self._start_timeout
        )
        return ActorHandle(
            self.setup,
            worker,
            seed,
            heartbeat,
            slots=self.slots,
            seconds=self.seconds[worker],
            newest=self._newest_weights,
            events=self._events,
        )

    def _check(self, handle: Handle) -> None:
        super()._check(handle)
        now = monotonic()
        if now - self._noted_at < NOTE_SECONDS:
            return
        self._noted_at = now
        if waiting := sum(not each.placed for each in self._handles if isinstance(each, ActorHandle)):
            cpus, count = ray.cluster_resources().get("CPU", 0.0), len(self._handles)
            log.info("%d of %d worker actors wait for a free CPU of the cluster, which has %.0f", waiting, count, cpus)

    def _has_work(self, worker: int) -> bool:
        handle = self._handles[worker]
        # An actor that waits for a free CPU of the cluster does not hang.
        return super()._has_work(worker) and isinstance(handle, ActorHandle) and handle.placed

    def _newest_weights(self) -> tuple[ray.ObjectRef[Any], int]:
        """The newest weights in Ray's object store. Each version is put there at most once, when an actor first needs it."""
        assert isinstance(self.weights, SharedWeights)
        if self._newest is None or self._newest[1] != self.weights.published_version:
            flat, version = self.weights.read_flat()
            self._newest = ray.put(flat), version
        return self._newest

    def _run_events(self) -> None:
        """The thread that answers the cluster: it alone calls actors, puts weights and copies trajectories into slots."""
        while (event := self._events.get()) is not None:
            try:
                event()
            except Exception as error:  # the boundary of the thread: `poll` raises the error
                failure = WorkerError(f"the Ray cluster could not be used: {' '.join(str(error).split())}")
                failure.__cause__ = error
                self._fail(failure)
