"""The pace of a run that learns from replays alone: how many batches are drawn for each fresh step of the environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ROUNDING = 1e-6
"""Batches by which the earned ones may be short of a whole number: sums of fractions such as 0.1 are not exact."""


@dataclass(frozen=True)
class PaceConfig:
    """The pace that an agent asks for.

    Args:
        updates_per_step: Batches for each step.
        learning_starts: Steps before the first batch. They earn none, so nothing is caught up on later (as in
            Stable-Baselines3).
        batches_at_once: Batches that are drawn together.
    """

    updates_per_step: float
    learning_starts: int
    batches_at_once: int = 1

    @property
    def first_draw(self) -> float:
        """Steps after which the first batches are drawn."""
        # From `learning_starts` on each step earns, and the first draw spends `batches_at_once`.
        return self.learning_starts + self.batches_at_once / self.updates_per_step


class Pace:
    """Each fresh step earns `updates_per_step` batches, and each batch spends one.

    While batches are owed, no trajectory may come in. So workers wait for the learner and nothing is lost. While none is owed,
    no batch may be drawn, so the learner waits for the workers. Exactly one of the two holds at any time: they never wait for
    each other, however many steps a trajectory or batches a draw has.

    Args:
        config: The pace.
        steps_of_trajectory: Fresh steps of one trajectory.
    """

    def __init__(self, config: PaceConfig, steps_of_trajectory: int) -> None:
        self.config = config
        self._steps_of_trajectory = steps_of_trajectory
        self._steps = 0
        self._owed = 0.0  # batches

    @property
    def owes(self) -> bool:
        """Whether a draw of `batches_at_once` batches has been earned."""
        return self._owed >= self.config.batches_at_once - ROUNDING  # so ten steps of 0.1 earn one batch

    def insert(self) -> None:
        """One trajectory has come in."""
        before = self._steps
        self._steps += self._steps_of_trajectory
        # A trajectory that crosses `learning_starts` earns only for its steps beyond it.
        learned = self._steps - max(before, self.config.learning_starts)
        self._owed += self.config.updates_per_step * max(0, learned)  # 0 while all steps lie before the start

    def spend(self) -> None:
        """One draw was made."""
        self._owed -= self.config.batches_at_once  # the rest is carried over, so the ratio holds in the long run

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._owed = state["steps"], state["owed"]
