"""The learner's side of the evaluation process: sends requests, receives results, and restarts the process if it fails.

The weights are copied into a shared memory block that only evaluation uses. The process therefore measures exactly one policy,
and the learner continues at once. Only the end of a run waits for the process. After `MAX_FAILURES` restarts evaluation is
disabled.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import numpy as np
from torch import nn

from learner.evaluation.evaluator_process import CLOCK, Answer, EvaluatorSetup, run_evaluator
from learner.evaluation.play import shared_equally
from learner.evaluation.reference_scores import mean_human_normalised
from learner.plan import Plan
from learner.runs.checkpoint import Counters
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from workers.processes.heartbeat import Heartbeat, start_timeout
from workers.processes.launcher import StartedProcess, start_process
from workers.weights import SharedWeights, weights_layout
from wrappers import describe_env

log = logging.getLogger("springbok")

MAX_FAILURES = 3
HANG_SECONDS = 60.0  # without a step; longer if workers or resets may take longer
CHECK_SECONDS = 0.5  # between two looks at the heartbeat
CLOSE_SECONDS = 2.0  # for environments that must be closed


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one evaluation.

    update, steps: the counters of the evaluated policy. returns: raw returns of whole episodes, at least one.
    animation: a GIF of one of the episodes; None if none was made this time. infos: `NAME_at_end` and `NAME_mean`.
    tasks: mean return of each environment, if there are several.
    """

    update: int
    steps: int
    returns: tuple[float, ...]
    animation: Path | None = None
    infos: Mapping[str, float] = field(default_factory=dict)
    tasks: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def score(self) -> float:
        """The number by which the best policy is chosen: the mean return, or the mean human-normalised score of Atari games."""
        score = mean_human_normalised(self.tasks)
        return self.mean_return if score is None else score

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for a single episode."""
        return float(np.std(self.returns, ddof=1)) / math.sqrt(len(self.returns)) if len(self.returns) > 1 else math.nan


class Evaluator:
    """Runs one evaluation at a time in another process.

    Args:
        network: its layout decides the size of the shared memory.
        animation: path of the GIF that some evaluations replace.
    """

    def __init__(self, plan: Plan, network: nn.Module, animation: Path) -> None:
        config, tasks = plan.config, len(plan.spec.tasks)
        self._setup = EvaluatorSetup(
            env=describe_env(config.env).evaluation_config,
            network=plan.network,
            episodes=config.evaluation.eval_episodes * tasks,
            environments=shared_equally(config.evaluation.environments, tasks),
            greedy=config.evaluation.greedy,
            epsilon=config.epsilon or 0.0,
            seed=config.training.seed,
            animation=animation,
        )
        self._shared = SharedArrays({**weights_layout(network), CLOCK: Field((1,), "float64")})
        self._weights = SharedWeights(self._shared)
        description = describe_env(self._setup.env)
        self._start_timeout = start_timeout(self._setup.environments, description.start_seconds)
        resets = self._setup.environments * description.reset_seconds
        self._hang_seconds = max(HANG_SECONDS, config.workers.worker_timeout, resets)
        self._closes = description.needs_close
        self._under_way: Counters | None = None  # of the policy that is being evaluated
        self._failures = 0
        self._process: StartedProcess | None = None
        self._last_check = 0.0

    @property
    def pid(self) -> int | None:
        """Id of the present process; None if there is none."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether there is a process. There is none after too many failures."""
        return self._process is not None

    @property
    def ready(self) -> bool:
        """Whether an evaluation can begin: the process exists and none is under way."""
        return self.alive and self._under_way is None

    def start(self) -> None:
        """Start the process."""
        self._start_process()

    def ask(self, network: nn.Module, counters: Counters) -> None:
        """Request an evaluation of the network as it is now. Wanted: `ready`."""
        self._weights.publish(network, counters.updates)
        # A copy, because training continues to count.
        self._under_way = Counters(steps=counters.steps, updates=counters.updates)
        self._send_request()

    def take(self) -> EvaluationResult | None:
        """Return the result that has arrived, if any. Restarts a process that has died or hangs."""
        if self._process is None:
            return None
        try:
            if self._answers.poll():
                return self._receive(self._answers.recv())
        except (EOFError, OSError):
            self._fail("died without a message")
            return None
        now = monotonic()
        if now - self._last_check >= CHECK_SECONDS:
            self._last_check = now
            if self._heartbeat.hangs(self._step_seconds, self._under_way is not None, now):
                self._fail(f"hung: no step for {self._heartbeat.limit:.0f} s")
        return None

    def stop(self) -> None:
        """End the process, at once unless its environments must be closed. Safe to call twice."""
        if self._process and self._closes:
            self._requests.close()  # the process sees the end of the file before its next step
            self._process.join(CLOSE_SECONDS)
        self._end_process()
        self._shared.close()

    def _receive(self, message: Answer | str) -> EvaluationResult | None:
        if isinstance(message, str):
            log.debug("%s", message)
            self._fail(f"failed: {message.strip().splitlines()[-1]}")
            return None
        counters, self._under_way = self._under_way, None
        assert counters is not None
        if message.problem:
            log.warning("%s", message.problem)
        if not message.returns:
            return None
        animation = self._setup.animation if message.animated else None
        of_tasks = zip(self._setup.network.tasks, message.task_means, strict=False)
        return EvaluationResult(counters.updates, counters.steps, message.returns, animation, message.infos, dict(of_tasks))

    def _fail(self, reason: str) -> None:
        """End the process, and start another unless it has failed too often."""
        self._end_process()
        self._failures += 1
        if self._failures > MAX_FAILURES:
            log.warning(
                "The evaluation process %s (failure %d). Evaluation is disabled for the rest of this run.",
                reason,
                self._failures,
            )
            return
        log.warning(
            "The evaluation process %s (failure %d of at most %d). Restarting it.", reason, self._failures, MAX_FAILURES
        )
        self._start_process()
        if self._under_way:
            self._send_request()  # the shared memory still holds the weights of this request

    def _start_process(self) -> None:
        requests, self._requests = multiprocessing.Pipe(duplex=False)
        self._answers: Connection
        self._answers, answers = multiprocessing.Pipe(duplex=False)
        self._heartbeat = Heartbeat(
            self._step_seconds, monotonic(), timeout=self._hang_seconds, start_timeout=self._start_timeout
        )
        try:
            self._process = start_process(run_evaluator, self._setup, self._shared, requests, answers, name="evaluator")
        except OSError as error:
            log.warning(
                "The evaluation process could not be started (%s). Evaluation is disabled for the rest of this run.", error
            )
            self._requests.close()
            self._answers.close()
        finally:
            # From now on only the process holds these ends, so its death is seen here as the end of the file.
            requests.close()
            answers.close()

    def _send_request(self) -> None:
        assert self._under_way is not None
        try:
            self._requests.send(self._under_way.updates)
        except OSError:
            return  # the process died; take() reports it

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.join()
            process.close()
            self._requests.close()
            self._answers.close()

    @property
    def _step_seconds(self) -> float:
        """Seconds that the process has spent in steps. The heartbeat watches whether they increase."""
        return float(self._shared.arrays[CLOCK][0])
