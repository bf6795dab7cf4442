"""Prioritised replay: trajectories, or windows of their rows, drawn in proportion to their temporal differences.

Source: the proportional variant of Schaul et al. 2016 (arXiv:1511.05952). A new trajectory gets the priorities that its own
values give (Ape-X, arXiv:1803.00933), or the largest priority so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from replay.base import Drawn, ReplayConfig, ReplayContext
from replay.kinds.ring_replay import HINDSIGHT_KEYS, RingReplay
from replay.priorities.priorities import Priorities, Tickets, importance_weights


class PrioritisedReplay(RingReplay):
    """Draws by priorities. The exponent beta of the importance weights moves from `beta` to `beta_end` over the run."""

    keys = ("alpha", "beta", "beta_end", "priority_epsilon", "device", *HINDSIGHT_KEYS)
    keeps_newest = gives_windows = True

    def __init__(self, config: ReplayConfig, context: ReplayContext) -> None:
        contract = context.contract
        super().__init__(
            config,
            context,
            lambda slots: Priorities(
                slots,
                contract.unroll_length,
                alpha=config.alpha,
                epsilon=config.priority_epsilon,
                whole=not contract.window,
                burn_in=contract.overlap,
            ),
        )
        self.progress = context.progress
        self.initial_errors = context.initial_errors
        self.windows = contract.window > 0
        self._void = 0  # updates since the last metrics whose trajectory was gone

    @property
    def priorities(self) -> Priorities:
        index = self.ring.index
        assert isinstance(index, Priorities)
        return index

    @property
    def settings(self) -> dict[str, Any]:
        names = ("alpha", "priority_epsilon")
        return {**super().settings, **{name: getattr(self.config, name) for name in names}}

    @property
    def beta(self) -> float:
        start, end = self.config.beta, self.config.beta_end
        # The correction becomes full towards the end: bias matters most near convergence (section 3.4).
        return start + (end - start) * min(1.0, self.progress())

    def insert(self, trajectory: Mapping[str, np.ndarray]) -> None:
        slot = self.ring.insert(trajectory)
        if slot is not None and self.initial_errors:
            # The ring has given each leaf that may be drawn the largest priority, which stays if no error is known.
            self.priorities.start(slot, self.initial_errors(trajectory))

    def sample(self, count: int, out: Mapping[str, np.ndarray]) -> Tensor | None:
        tickets, relative = self.priorities.draw(count, self.ring.generator)  # relative: count P(i) [n]
        self.drawn = Drawn(tickets, importance_weights(relative, self.beta))  # the mixture divides w by its maximum
        if self.windows:
            return self.ring.give_windows(tickets.slots, tickets.rows, out)
        return self.ring.give(tickets.slots, out)

    def update_priorities(self, tickets: Tickets, errors: np.ndarray) -> None:
        self._void += self.priorities.update(tickets, errors)  # results are late: a slot may hold another trajectory by now

    def metrics(self) -> dict[str, float]:
        void, self._void = self._void, 0
        own = {"beta": self.beta, "largest_priority": self.priorities.largest, "void_updates": float(void)}
        return {**super().metrics(), **own}
