"""Keeps the counters of a run: steps, frames, updates, episodes and trajectories of all learners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agents import Report
from learner.evaluation.evaluator import Evaluation
from learner.feeding.feeder import Arrivals
from learner.metrics.statistics import EpisodeStatistics
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint, Counters
from replay.batch import HostBatch


class Counting:
    """Counts steps and updates without reporting them. Learners of rank 1 and up have it; rank 0 has a `Recorder`.

    Args:
        plan: of the run.
        counters: how far the run has come; counted up here, and saved in checkpoints.
        resumed: the checkpoint that the run continues from, None for a new run.

    Attributes:
        learning_rate: of the newest update.
        episodes: returns of the episodes that have ended.
    """

    def __init__(self, plan: Plan, counters: Counters, resumed: Checkpoint | None = None) -> None:
        self.config = plan.config
        self.counters = counters
        self.learning_rate = resumed.learning_rate if resumed else 0.0
        self.episodes = EpisodeStatistics(plan.config.output.return_window)
        self.episodes.recent.extend(resumed.returns if resumed else [])
        self.episodes.infos.add(resumed.infos if resumed else [], {})
        self._frames_per_step = plan.spec.frames_per_step
        self._at_start = replace(counters)

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Count the fresh trajectories that arrived for a batch."""
        self.episodes.add(arrivals.episodes, arrivals.infos)
        counters = self.counters
        steps = arrivals.trajectories * self.config.training.unroll_length
        counters.trajectories += arrivals.trajectories
        counters.steps += steps
        counters.frames += steps * self._frames_per_step
        counters.episodes = self._at_start.episodes + self.episodes.count

    def add_update(self, updated: Report, batch: HostBatch) -> None:
        """Count an update: what the agent reports, and the policy lag of the batch."""
        self.learning_rate = updated.learning_rate
        self.counters.updates += 1

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Report the result of an evaluation."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a stage of the loop."""
        yield

    def report(self) -> None:
        """Called once per update: writes a record and shows the progress line if they are due."""

    def show_filling(self) -> None:
        """Show how far the replays are filled, while the learner waits for its first batch."""

    def write_record(self) -> None:
        """Write a record of the time since the last one; nothing if there was no step and no update since."""

    def finish(self, checkpoint: Path | None, *, interrupted: bool) -> None:
        """Write summary and learning curve, and log the result. checkpoint: the last one, None if it could not be saved."""

    def close(self) -> None:
        """Close all files; called at every end of a run."""
