"""Handles updates that were skipped because a number was not finite.

They are counted and logged. After several in a row the last good weights are restored; after as many again the run ends.
"""

from __future__ import annotations

import copy
import logging

from agents import Agent

log = logging.getLogger("springbok")


class SkippingError(RuntimeError):
    """Every update is skipped. The message names the first non-finite quantity."""


class SkippedUpdates:
    """Counts an agent's skipped updates, and restores its last good weights.

    Args:
        agent: the agent that learns.
        most: number of skipped updates in a row after which the weights and moments that were kept last are restored. After as
            many again the run ends.
        updates: number of updates that the agent has made so far.

    Attributes:
        count: skipped updates since the program was started.
        in_a_row: skipped updates since the last applied one.
    """

    def __init__(self, agent: Agent, most: int, updates: int) -> None:
        self.count = 0
        self.in_a_row = 0
        self._agent = agent
        self._most = most
        self._updates = updates
        self._first = ""
        self.keep()

    def keep(self) -> None:
        """Keep a copy of weights and moments. Call it only when the newest update was applied."""
        # A copy is needed, because the next update changes the tensors of the state in place.
        self._kept = copy.deepcopy(self._agent.state_dict())
        self._kept_at = self._updates

    def look(self, *, everything: bool = False) -> None:
        """Count the updates since the last call. Raises SkippingError.

        everything: include a GPU's newest update, which makes the host wait for it.
        """
        for quantity in self._agent.take_skip_reasons(everything=everything):
            # Updates are counted here, because a GPU's finite check is read one update late.
            self._updates += 1
            if quantity:
                self._skip(quantity)
            else:
                self.in_a_row = 0

    def newest_is_sound(self) -> bool:
        """Whether the newest update was applied; a GPU is waited for. Raises SkippingError."""
        self.look(everything=True)
        return not self.in_a_row

    def _skip(self, quantity: str) -> None:
        self.count += 1
        self.in_a_row += 1
        if self.in_a_row == 1:
            self._first = f"non-finite {quantity} in update {self._updates:,}"
            log.warning("An update was skipped: %s", self._first)
        elif self.in_a_row == 2 * self._most:
            raise SkippingError(
                f"{self.in_a_row} updates in a row were skipped, although the weights of update {self._kept_at:,} were "
                f"restored after {self._most} (max_skipped_updates={self._most}); first cause: {self._first}"
            )
        if self.in_a_row == self._most:
            # A second copy is needed, because the optimiser would adopt the kept moments and change them.
            self._agent.load_state_dict(copy.deepcopy(self._kept), load_optimizer=True)
            log.warning(
                "%d updates in a row were skipped: the weights of update %s are restored", self._most, f"{self._kept_at:,}"
            )
