"""Starts the learners of ranks 1 and up, as processes of rank 0, and finds out why one of them has ended."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from learner.console import shared_with_libraries
from learner.plan import Plan
from learner.ranks.base import Learners, RankError
from learner.ranks.group import LearnerGroup, open_store
from learner.ranks.learner_process import LOST_OTHERS, READY, LearnerTask, run_learner
from learner.ranks.several import SeveralLearners
from learner.runs.directory import RunDirectory
from workers.processes.handle import exit_reason
from workers.processes.launcher import StartedProcess, start_program

log = logging.getLogger("springbok")

START_SECONDS = 120.0
"""For a learner to import PyTorch, to start its workers and to be ready to connect."""
END_SECONDS = 10.0
"""For a learner to end by itself after the run has ended."""
CAUSE_SECONDS = 5.0
"""For a learner whose connections have closed to be gone, so that its exit code is known."""


@contextmanager
def all_learners(plan: Plan, run: RunDirectory, checkpoint: Path | None) -> Iterator[Learners]:
    """Start the other learners of a run, if it has any, and end them with the context. Gives rank 0 its `Learners`.

    Args:
        plan: of the run, settled.
        run: its directory.
        checkpoint: that it resumes from.

    Raises RankError if a learner cannot be started. One that the context raises gets the cause as its message.
    """
    if plan.config.training.learner_count == 1:
        yield Learners()
        return
    with _LearnerProcesses(plan, run, checkpoint) as processes:
        try:
            yield processes.connected()
        except RankError as error:
            raise RankError(processes.cause() or str(error)) from error


class _LearnerProcesses:
    """The processes of ranks 1 and up. A context manager, which ends them."""

    def __init__(self, plan: Plan, run: RunDirectory, checkpoint: Path | None) -> None:
        self._training = plan.config.training
        self._processes: list[StartedProcess] = []
        self._words: list[Connection] = []
        self._said: dict[int, str] = {}
        self._store, self._port = open_store(self._training.learner_count)
        for rank in range(1, self._training.learner_count):
            task = LearnerTask(rank, plan, run.path, checkpoint, self._port, os.getpid())
            words, their_words = multiprocessing.Pipe(duplex=False)
            try:
                # Processes are spawned and not forked, because this one has already looked at its GPU.
                with shared_with_libraries():
                    self._processes.append(start_program(run_learner, task, their_words, name=f"learner-{rank}"))
            except OSError as error:
                self.end()
                raise RankError(f"rank {rank} could not be started: {error}") from error
            finally:
                their_words.close()  # only the process holds this end, so its death is an end of file here
            self._words.append(words)

    def __enter__(self) -> _LearnerProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(END_SECONDS if kind is None else 0.0)

    def connected(self) -> SeveralLearners:
        """Connect with all others as soon as they are ready. Raises RankError."""
        end = time.monotonic() + START_SECONDS
        for rank, words in enumerate(self._words, 1):
            if not words.poll(max(0.0, end - time.monotonic())):
                raise RankError(f"rank {rank} was not ready within {START_SECONDS:.0f} s of its start")
            if (said := self._last_words(rank)) != READY:
                raise RankError(f"rank {rank} failed: {said}")
        training = self._training
        group = LearnerGroup(0, training.learner_count, self._store, self._port, torch.device(training.device))
        return SeveralLearners(group, whole_updates=training.reproducible)

    def cause(self) -> str | None:
        """Why the first learner that failed by itself has ended; None if all run, or if they have only lost contact."""
        end = time.monotonic() + CAUSE_SECONDS
        wait(self._words, CAUSE_SECONDS)
        for rank, process in enumerate(self._processes, 1):
            process.join(max(0.0, end - time.monotonic()))
            code = process.exitcode
            if code not in (None, 0, LOST_OTHERS):
                return f"rank {rank} {exit_reason(code, self._last_words(rank))}"
        return None

    def end(self, seconds: float = 0.0) -> None:
        """End the processes, at once if they do not end by themselves within `seconds`."""
        end = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()

    def _last_words(self, rank: int) -> str:
        """The newest message of a learner, empty if it has ended without one."""
        words = self._words[rank - 1]
        with contextlib.suppress(EOFError, OSError):
            while words.poll(0.0):
                self._said[rank] = str(words.recv())
        return self._said.get(rank, "")
