"""The work of a served worker's process: a server in an event loop, and the seats that write trajectories."""

from __future__ import annotations

import asyncio
import contextlib
import os
from multiprocessing.connection import Connection
from typing import Any

import torch

from serve.app import ClientServer
from serve.run import listen, run, serve
from workers.base import worker_clocks
from workers.clocks import Clocks
from workers.evaluation_policy import EvaluationPolicy
from workers.infos import slots_with_infos
from workers.policy import LearnerGone
from workers.processes.worker import ENDING, STOP, WorkerTask
from workers.served.counts import FINISHED, Counts
from workers.served.policy import SeatPolicy
from workers.served.seats import Seats
from workers.weights import SharedWeights
from wrappers.served import PREFIX

IDLE_SECONDS = 0.1
BLOCKED_SECONDS = 0.002  # between two looks for new weights, while seats wait for them
COUNT_SECONDS = 0.1
TURNS = 2  # of the event loop for a message: one reads it from its socket, the next gives it to its session


class ServedWork:
    """Serves clients until the learner stops it or is gone."""

    def __init__(self, task: WorkerTask, free: Connection, filled: Connection) -> None:
        setup = task.setup
        assert setup.server is not None
        self._ending, self._finished = task.shared.arrays[ENDING], task.shared.arrays[FINISHED]
        self._free, self._filled = free, filled
        self._clocks = Clocks(worker_clocks(task.shared)[task.worker])
        self._counts = Counts(task.shared.arrays, setup.first_step)
        weights = SharedWeights(task.shared)
        self._greedy_network = setup.make_network()
        greedy = EvaluationPolicy(self._greedy_network, torch.device("cpu"), greedy=True, seed=task.seed)
        slots = slots_with_infos(task.shared, setup.contract)
        policy = SeatPolicy(setup, weights, task.seed)
        self._weights = weights
        self._policy, self._environment = policy, setup.env.env.removeprefix(PREFIX)
        self.seats = Seats(setup, policy, greedy, slots, self._hand_over, self._counts)
        self.server = ClientServer(self.seats, setup.server, self._status)
        self._listening = listen(setup.server)
        self._wakes = asyncio.Event()
        self._gone = False

    async def work(self) -> None:
        """Serve. Raises LearnerGone."""
        await serve(self.server, self._listening, self._act_for_ever())
        raise LearnerGone

    async def _act_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._free.fileno(), self._receive)
        self.seats.wake = self._wakes.set
        counting = asyncio.ensure_future(self._count())
        try:
            while not (self._gone or self._ending[0]):
                self._wakes.clear()
                await self._read_all()
                has_work = self.seats.waiting > 0
                if not (has_work and self._act()):
                    await self._sleep("wait" if has_work else "env", BLOCKED_SECONDS if has_work else IDLE_SECONDS)
        finally:
            counting.cancel()
            self.server.is_finished = bool(self._finished[0])
            loop.remove_reader(self._free.fileno())
        raise LearnerGone

    async def _read_all(self) -> None:
        """Let all messages that have arrived be read, so that one pass of the network answers them."""
        before = 0
        while (waiting := self.seats.waiting) > before:
            before = waiting
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _act(self) -> bool:
        with self._clocks.stage("act"):
            if self.seats.refresh():
                self._weights.read(self._greedy_network)
            return self.seats.act()

    async def _sleep(self, clock: str, seconds: float) -> None:
        """Wait for a message, a slot, or as long. The time counts for `clock`."""
        with self._clocks.stage(clock), contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wakes.wait(), seconds)

    def _receive(self) -> None:
        """Take numbers of free slots from the learner."""
        message = os.read(self._free.fileno(), 256)
        if message == b"" or STOP in message:  # b"" is the end of the file: the learner has died
            self._gone = True
        for number in message:
            if number != STOP:
                self.seats.free(number)
        self._wakes.set()

    def _hand_over(self, slot: int) -> None:
        try:
            os.write(self._filled.fileno(), bytes([slot]))
        except BrokenPipeError:
            self._gone = True

    async def _count(self) -> None:
        while True:
            self._counts.write(len(self.server.connections), self.server.seats, self.server.refused)
            await asyncio.sleep(COUNT_SECONDS)

    def _status(self) -> dict[str, Any]:
        return {"environment": self._environment, "version": self._policy.version, **self._counts.status()}


def serve_clients(task: WorkerTask, free: Connection, filled: Connection) -> None:
    """Serve clients for ever. Raises LearnerGone."""

    async def work() -> None:
        await ServedWork(task, free, filled).work()

    run(work(), fast=True)
