"""Evaluation in parallel with training: the hook that evaluates the policy, and what it keeps of the result.

Every `eval_period` updates or `eval_seconds` seconds the hook hands the current weights to the evaluation process
(`evaluator.py`). Each result becomes a line in evaluations.jsonl. The checkpoint with the best mean return is kept as best.pt.
A run that ends without a signal, at the end of its budget or at `stop_at_steps`, evaluates its final policy too.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from torch import nn

from learner.evaluation.evaluator import EvaluationResult, Evaluator
from learner.hooks import Hook
from learner.metrics.summary import evaluation_lines
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint, Counters, load_checkpoint, save_checkpoint
from learner.runs.directory import RunDirectory

log = logging.getLogger("springbok")

LOOK_SECONDS = 0.05  # between two looks for the result of the final policy


class EvaluationSchedule(Hook):
    """The evaluations of one run, if `eval_period` or `eval_seconds` is not 0.

    Args:
        plan: of the run.
        run: its directory.
        network: the policy.
        counters: of the run.
        resumed: the checkpoint from which the run resumes, if any.
        make_checkpoint: returns a checkpoint of the run as it is now.
        add: takes each result.
    """

    def __init__(
        self,
        plan: Plan,
        run: RunDirectory,
        network: nn.Module,
        counters: Counters,
        resumed: Checkpoint | None,
        *,
        make_checkpoint: Callable[[], Checkpoint],
        add: Callable[[EvaluationResult], None],
    ) -> None:
        settings = plan.config.evaluation
        self._period, self._seconds = settings.eval_period, settings.eval_seconds
        self._network, self._counters = network, counters
        self._make_checkpoint, self._add = make_checkpoint, add
        self._last_update = 0  # number of updates at the last request
        self._last_time = 0.0  # of the last request
        self._evaluator = Evaluator(plan, network, run.animation)
        self._log = EvaluationLog(run, plan.protocol, resumed)

    def on_start(self) -> None:
        """Start the evaluation process."""
        self._last_update, self._last_time = self._counters.updates, monotonic()
        self._evaluator.start()

    def on_update(self) -> None:
        """Take a result that has arrived, and request the next evaluation if it is due."""
        self._take()
        # One evaluation runs at a time. One that falls due meanwhile waits, so on a busy machine evaluations become rarer
        # and training does not become slower.
        if self._evaluator.ready and self._is_due(self._counters.updates):
            self._ask()

    def on_end(self, saved: Path | None, *, interrupted: bool, asked: Callable[[], bool]) -> None:
        """Wait for the evaluation in progress, and evaluate the final policy. A signal before or during the wait ends it."""
        if asked():
            return
        while self._evaluator.alive:
            self._take()
            if self._evaluator.ready:
                if self._last_update == self._counters.updates:
                    return
                log.info("Evaluating the final policy (Ctrl-C ends this; the run is saved)")
                self._ask()
            if asked():
                log.info("The evaluation of the final policy was stopped")
                return
            sleep(LOOK_SECONDS)

    def close(self) -> None:
        """End the process and discard an unfinished evaluation. Safe to call twice."""
        self._evaluator.stop()
        self._log.discard()

    def _take(self) -> None:
        if found := self._evaluator.take():
            self._log.settle(found)
            self._add(found)

    def _ask(self) -> None:
        self._last_update, self._last_time = self._counters.updates, monotonic()
        # The checkpoint is written before its result is known: training changes the weights while they are evaluated.
        self._log.propose(self._make_checkpoint())
        self._evaluator.ask(self._network, self._counters)

    def _is_due(self, updates: int) -> bool:
        # Evaluations are due at multiples of the period, however late the last one began; a resumed run keeps to them too.
        if self._period and updates // self._period > self._last_update // self._period:
            return True
        return self._seconds > 0 and monotonic() - self._last_time >= self._seconds


class EvaluationLog:
    """Writes the results of a run's evaluations, and keeps the checkpoint with the best finite mean return.

    Every result carries its protocol. Results of different protocols are never compared.

    Args:
        resumed: the checkpoint from which the run resumes; evaluations of later updates no longer count.
    """

    def __init__(self, run: RunDirectory, protocol: dict[str, Any], resumed: Checkpoint | None = None) -> None:
        self._run = run
        self._protocol = protocol
        self._candidate = run.checkpoints / "candidate.pt"
        self._best = self._best_so_far(resumed.counters.updates) if resumed else None

    def propose(self, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint as the candidate for the best one, until its result is known."""
        try:
            save_checkpoint(self._candidate, checkpoint)
        except OSError as error:
            log.warning("The checkpoint under evaluation was not saved: %s", error.strerror or error)
            self.discard()

    def settle(self, evaluation: EvaluationResult) -> None:
        """Write the result. The candidate becomes the best checkpoint if its score is higher than any before."""
        line = {
            "update": evaluation.update,
            "steps": evaluation.steps,
            "mean_return": evaluation.mean_return,
            "returns": evaluation.returns,
            **({"info": evaluation.infos} if evaluation.infos else {}),
            **({"tasks": evaluation.tasks, "score": evaluation.score} if evaluation.tasks else {}),
            "protocol": self._protocol,
        }
        try:
            with self._run.evaluations.open("a") as file:
                file.write(json.dumps(line) + "\n")
            # The candidate is missing if it could not be saved when the evaluation began.
            score = evaluation.score
            # No later score would be higher than infinity or NaN.
            if math.isfinite(score) and (self._best is None or score > self._best) and self._candidate.is_file():
                self._candidate.replace(self._run.best)
                self._best = score
        except OSError as error:
            log.warning("The result of the evaluation was not saved: %s", error.strerror or error)

    def discard(self) -> None:
        """Remove a candidate without a result."""
        try:
            self._candidate.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s was not removed: %s", self._candidate, error.strerror or error)

    def _best_so_far(self, update: int) -> float | None:
        """Score of best.pt if an evaluation up to `update` by the same protocol produced it, otherwise None."""
        try:
            best_update = load_checkpoint(self._run.best).counters.updates
        except ValueError:
            return None
        scores = [
            float(line.get("score", line["mean_return"]))
            for line in evaluation_lines(self._run.evaluations)
            if line["update"] == best_update <= update and line["protocol"] == self._protocol
        ]
        return scores[-1] if scores and math.isfinite(scores[-1]) else None
