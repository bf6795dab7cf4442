"""The learners of a run, as the training loop uses them. `Learners` is for a run with one.

A run has one learner or several. Each has a rank, from 0. Rank 0 is the program that the user started: it records, saves and
evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agents import Agent
from learner.feeding.feeder import Arrivals
from workers import Workers

Asked = Callable[[], bool]
"""Returns whether a signal has asked this learner to stop."""


class RankError(RuntimeError):
    """Another learner of the run has failed. The message says which, and why."""


class Learners:
    """The only learner of a run. It decides alone, and nothing is added up.

    rank: that of this learner. count: how many learners the run has.
    """

    rank = 0
    count = 1

    def join(self, agent: Agent, workers: Workers) -> None:
        """Give the agent the state of rank 0's, and let it add its gradients to those of the others.

        workers: of this learner. Rank 0 reports their use.
        """

    def keep_equal(self, agent: Agent) -> None:
        """Compare the agents' weights, and replace those that differ from rank 0's. Called before each checkpoint."""

    def start(self, asked: Asked) -> bool:
        """Wait until every learner is ready for its first batch. Returns whether the run continues."""
        return True

    def stops(self, asked: Asked) -> bool:
        """Whether the run stops now, between two updates."""
        return asked()

    def stops_waiting(self, asked: Asked) -> bool:
        """Whether the run stops now, while this learner waits for a batch or restores its environments.

        Call it several times a second.
        """
        return asked()

    def meet(self, arrivals: Arrivals, asked: Asked) -> Arrivals | None:
        """Wait until each learner has its batch. Returns the arrivals of all, or None if the run stops before the update."""
        return arrivals

    def of_first(self, flag: bool) -> bool:
        """The flag of rank 0. All learners call it after the same update."""
        return flag

    def replay_checksums(self) -> Sequence[str | None]:
        """The checksums of the replay files that ranks 1 and up have written for the checkpoint that is being saved."""
        return ()

    @property
    def cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds that the other learners have used so far: their workers, and they themselves."""
        return 0.0, 0.0

    @property
    def restarts(self) -> int:
        """Restarted workers of the other learners."""
        return 0

    def metrics(self) -> Mapping[str, float]:
        """Metrics since the last call."""
        return {}

    def leave(self) -> None:
        """Leave every exchange, after a failure of this learner or of another one. Safe to call twice."""
