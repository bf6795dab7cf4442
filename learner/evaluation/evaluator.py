"""Evaluation beside training: every so many updates another process plays the policy of that update by the run's protocol.

The weights are copied into shared memory of their own, so what is measured is one policy, and the learner goes on at once. A
process that dies, fails or hangs is started again a few times and then given up: training never waits for it.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import numpy as np
from torch import nn

from learner.evaluation.evaluator_process import CLOCK, EvaluatorSetup, run_evaluator
from learner.evaluation.protocol import evaluation_env
from learner.runs.checkpoint import Counters
from learner.settings.config import Config
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.processes.heartbeat import Heartbeat
from workers.processes.launcher import Child, start_process
from workers.weights import SharedWeights, weights_layout

log = logging.getLogger("springbok")

MOST_ENVIRONMENTS = 16
MOST_FAILURES = 3
HANG_SECONDS = 60.0
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Evaluation:
    """Raw returns of whole episodes of the policy after `update` updates and `steps` steps.

    animation: a GIF of one of them; None where none was made, since that is done now and then only.
    """

    update: int
    steps: int
    returns: tuple[float, ...]
    animation: Path | None = None

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single episode."""
        return float(np.std(self.returns, ddof=1)) / math.sqrt(len(self.returns)) if len(self.returns) > 1 else math.nan


class Evaluator:
    """The learner's side. One evaluation at a time: what falls due meanwhile is asked for when the process is free.

    animation: the GIF that evaluations replace now and then.
    """

    def __init__(self, config: Config, network: nn.Module, animation: Path) -> None:
        episodes = config.evaluation.eval_episodes
        self._setup = EvaluatorSetup(
            env=evaluation_env(config.env),
            network=config.network,
            episodes=episodes,
            environments=min(episodes, MOST_ENVIRONMENTS),
            greedy=config.evaluation.greedy,
            seed=config.training.seed,
            animation=animation,
        )
        self._period = config.evaluation.eval_period
        self._shared = SharedArrays({**weights_layout(network), CLOCK: Field((1,), "float64")})
        self._weights = SharedWeights(self._shared)
        self._asked_for: Counters | None = None  # what is being played
        self._last_update: int | None = None
        self._failures = 0
        self._process: Child | None = None
        self._last_look = 0.0

    @property
    def pid(self) -> int | None:
        """The process that is there now."""
        return self._process.pid if self._process else None

    def start(self, update: int) -> None:
        """Start the process; update: how many are made."""
        self._last_update = update
        self._spawn()

    def due(self, update: int) -> bool:
        """Whether an evaluation is wanted after `update` updates and can begin."""
        if self._process is None or self._asked_for is not None or self._last_update is None:
            return False
        return update // self._period > self._last_update // self._period

    def ask(self, network: nn.Module, counters: Counters) -> None:
        """Have the network played as it is now."""
        self._weights.publish(network, counters.updates)
        self._asked_for = Counters(steps=counters.steps, updates=counters.updates)
        self._last_update = counters.updates
        self._send()

    def take(self) -> Evaluation | None:
        """The evaluation that has come in, if one has; looks after the process now and then."""
        if self._process is None:
            return None
        try:
            if self._answers.poll():
                return self._hear(self._answers.recv())
        except (EOFError, OSError):
            self._fail("died without a word")
            return None
        now = monotonic()
        if now - self._last_look >= LOOK_SECONDS:
            self._last_look = now
            if self._heartbeat.hangs(self._beat, self._asked_for is not None, now):
                self._fail(f"hung: no step for {self._heartbeat.limit:.0f} s")
        return None

    def stop(self) -> None:
        """End the process, whatever it does; safe to call twice."""
        self._end()
        self._shared.close()

    def _hear(self, message: tuple[int, Sequence[float], bool] | str) -> Evaluation | None:
        if isinstance(message, str):
            log.debug("%s", message)
            self._fail(f"failed: {message.strip().splitlines()[-1]}")
            return None
        asked, self._asked_for = self._asked_for, None
        assert asked is not None
        _, returns, animated = message
        return Evaluation(asked.updates, asked.steps, tuple(returns), self._setup.animation if animated else None)

    def _fail(self, reason: str) -> None:
        self._end()
        self._failures += 1
        if self._failures > MOST_FAILURES:
            log.warning("The evaluation process %s; it failed %d times: this run evaluates no more", reason, self._failures)
            return
        log.warning("The evaluation process %s; started again (failure %d of %d)", reason, self._failures, MOST_FAILURES)
        self._spawn()
        if self._asked_for:
            self._send()  # its weights are still in the shared memory

    def _spawn(self) -> None:
        asked, self._requests = multiprocessing.Pipe(duplex=False)
        self._answers: Connection
        self._answers, answers = multiprocessing.Pipe(duplex=False)
        self._heartbeat = Heartbeat(HANG_SECONDS, self._beat, monotonic())
        try:
            self._process = start_process(run_evaluator, self._setup, self._shared, asked, answers, name="evaluator")
        except OSError as error:
            log.warning("The evaluation process could not be started (%s): this run evaluates no more", error)
            self._requests.close()
            self._answers.close()
        finally:
            asked.close()
            answers.close()  # only the process holds it now, so its death is an end of file here

    def _send(self) -> None:
        assert self._asked_for is not None
        try:
            self._requests.send(self._asked_for.updates)
        except OSError:
            return  # it died: take() finds the reason

    def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.join()
            process.close()
            self._requests.close()
            self._answers.close()

    @property
    def _beat(self) -> float:
        return float(self._shared.arrays[CLOCK][0])
