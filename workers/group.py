"""The group of worker processes: spawned, each with its own two pipes and its own share of the slots."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from agents.networks import ActorCritic
from workers.base import Block, WorkerError, Workers, WorkerSetup, block_of
from workers.process import STOP, run_worker

JOIN_SECONDS = 3.0


class ProcessWorkers(Workers):
    """Workers of the kind `cpu`: each process steps its environments and runs its own copy of the policy."""

    def __init__(self, setup: WorkerSetup, network: ActorCritic) -> None:
        super().__init__(setup, network)
        self._processes: list[BaseProcess] = []
        self._free: list[Connection] = []
        self._filled: list[Connection] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        config = self.setup.config
        for worker in range(config.worker_count):
            free_reader, free = context.Pipe(duplex=False)
            filled, filled_writer = context.Pipe(duplex=False)
            process = context.Process(
                target=run_worker,
                args=(self.setup, worker, self.shared, free_reader, filled_writer, os.getpid()),
                name=f"worker-{worker}",
                daemon=True,
            )
            process.start()
            free_reader.close()  # only the worker holds its ends now, so its death is an end of file here
            filled_writer.close()
            self._processes.append(process)
            self._free.append(free)
            self._filled.append(filled)
            for number in range(config.blocks_per_worker):
                self._send(worker, number)

    def poll(self, timeout: float) -> list[Block]:
        ready = wait(self._filled, timeout)
        return [self._receive(self._filled.index(connection)) for connection in ready]  # type: ignore[arg-type]

    def release(self, block: Block) -> None:
        self._send(block.worker, block.number)

    def stop(self) -> None:
        for worker in range(len(self._processes)):
            with contextlib.suppress(OSError):
                self._free[worker].send(STOP)
        for process in self._processes:
            process.join(JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for connection in (*self._free, *self._filled):
            connection.close()
        self._processes, self._free, self._filled = [], [], []
        self.shared.close()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _send(self, worker: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: poll finds the reason
            self._free[worker].send(number)

    def _receive(self, worker: int) -> Block:
        try:
            message = self._filled[worker].recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[worker]
            process.join(JOIN_SECONDS)
            raise WorkerError(f"worker {worker} died without a word, exit code {process.exitcode}") from None
        if isinstance(message, str):
            raise WorkerError(f"worker {worker} failed:\n{message}")
        return block_of(self.setup.config, worker, message)
