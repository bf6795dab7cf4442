"""A run's evaluations as the training loop sees them: when they are made, and what they leave behind.

Each is a line in evaluations.jsonl, and the checkpoint that played best is kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from learner.evaluation.evaluator import Evaluation, Evaluator
from learner.evaluation.protocol import evaluation_protocol
from learner.runs.checkpoint import Checkpoint, Counters, load_checkpoint, save_checkpoint
from learner.runs.directory import RunDirectory
from learner.settings.config import Config

log = logging.getLogger("springbok")


class Evaluations:
    """Those of one run; does nothing where `eval_period` is 0."""

    def __init__(self, config: Config, run: RunDirectory, network: nn.Module, resumed: Checkpoint | None) -> None:
        self._evaluator: Evaluator | None = None
        if config.evaluation.eval_period:
            self._evaluator = Evaluator(config, network, run.animation)
            self._log = EvaluationLog(run, evaluation_protocol(config.env, config.evaluation.greedy), resumed)

    def start(self, update: int) -> None:
        """Start the process that plays; update: how many are made."""
        if self._evaluator:
            self._evaluator.start(update)

    def step(self, network: nn.Module, counters: Counters, checkpoint: Callable[[], Checkpoint]) -> Evaluation | None:
        """Once an update: what was found since the last call; asks for the next evaluation when it is due.

        checkpoint: makes one of the run as it is now, to be kept if it plays best.
        """
        if not self._evaluator:
            return None
        if found := self._evaluator.take():
            self._log.settle(found)
        if self._evaluator.due(counters.updates):
            self._log.propose(checkpoint())
            self._evaluator.ask(network, counters)
        return found

    def stop(self) -> None:
        """End the process; what it was playing is lost. Safe to call twice."""
        if self._evaluator:
            self._evaluator.stop()
            self._log.forget()


class EvaluationLog:
    """Stamps every evaluation with the protocol it was made by; results of another protocol are never compared with it.

    resumed: what the run goes on from; evaluations of later updates no longer count.
    """

    def __init__(self, run: RunDirectory, protocol: dict[str, Any], resumed: Checkpoint | None = None) -> None:
        self._run = run
        self._protocol = protocol
        self._candidate = run.checkpoints / "candidate.pt"
        self._best = self._best_so_far(resumed.counters.updates) if resumed else None

    def propose(self, checkpoint: Checkpoint) -> None:
        """Keep what is about to be evaluated, until the result is known."""
        try:
            save_checkpoint(self._candidate, checkpoint)
        except OSError as error:
            log.warning("The checkpoint to be evaluated was not kept: %s", error.strerror or error)
            self.forget()

    def settle(self, evaluation: Evaluation) -> None:
        """Write the result down; what was proposed becomes the best checkpoint if it played better than any before."""
        line = {
            "update": evaluation.update,
            "steps": evaluation.steps,
            "mean_return": evaluation.mean_return,
            "returns": evaluation.returns,
            "protocol": self._protocol,
        }
        try:
            with self._run.evaluations.open("a") as file:
                file.write(json.dumps(line) + "\n")
            if (self._best is None or evaluation.mean_return > self._best) and self._candidate.is_file():
                self._candidate.replace(self._run.best)
                self._best = evaluation.mean_return
        except OSError as error:
            log.warning("The evaluation was not written: %s", error.strerror or error)

    def forget(self) -> None:
        """Remove what was proposed and never settled."""
        try:
            self._candidate.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s was not removed: %s", self._candidate, error.strerror or error)

    def _best_so_far(self, update: int) -> float | None:
        """Mean return of the best checkpoint, where an evaluation by this protocol made it the best; None otherwise."""
        try:
            kept = load_checkpoint(self._run.best).counters.updates
        except ValueError:
            return None
        returns = [
            line["mean_return"]
            for line in self._lines()
            if line["update"] == kept <= update and line["protocol"] == self._protocol
        ]
        return returns[-1] if returns else None

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self._run.evaluations.is_file():
            for line in self._run.evaluations.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # cut short by a full disk
