"""Keeps the counters of a run: steps, frames, updates, episodes and trajectories of all learners."""

from __future__ import annotations

from agents import UpdateReport
from learner.feeding.feeder import Arrivals
from learner.metrics.statistics import ReturnStatistics
from learner.plan import Plan
from learner.runs.checkpoint import Checkpoint, Counters


class Counting:
    """Counts what a checkpoint holds beside the agent. A `MetricsRecorder` reports it.

    Args:
        plan: of the run.
        counters: how far the run has come; counted up here, and saved in checkpoints.
        resumed: the checkpoint that the run continues from, None for a new run.

    Attributes:
        learning_rate: of the newest update.
        episodes: returns of the episodes that have ended.
    """

    def __init__(self, plan: Plan, counters: Counters, resumed: Checkpoint | None = None) -> None:
        self.counters = counters
        self.learning_rate = resumed.learning_rate if resumed else 0.0
        self.episodes = ReturnStatistics(plan.config.output.return_window, plan.network.tasks)
        self.episodes.recent.extend(resumed.returns if resumed else [])
        for recent, saved in zip(self.episodes.recent_of_tasks.values(), resumed.task_returns if resumed else (), strict=False):
            recent.extend(saved)
        self.episodes.infos.add(resumed.infos if resumed else [], {})
        self._unroll_length = plan.config.training.unroll_length
        self._frames_per_step = plan.spec.frames_per_step
        self._episodes_before = counters.episodes

    def add_arrivals(self, arrivals: Arrivals) -> None:
        """Count the fresh trajectories that arrived for a batch."""
        self.episodes.add(arrivals.episodes, arrivals.infos)
        counters = self.counters
        steps = arrivals.trajectories * self._unroll_length
        counters.trajectories += arrivals.trajectories
        counters.steps += steps
        counters.frames += steps * self._frames_per_step
        counters.episodes = self._episodes_before + self.episodes.count

    def add_update(self, updated: UpdateReport) -> None:
        """Count an update."""
        self.learning_rate = updated.learning_rate
        self.counters.updates += 1
