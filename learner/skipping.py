"""What follows when updates are skipped because a number was not finite: they are counted and told, then the last good weights
return, then the run ends."""

from __future__ import annotations

import copy
import logging

from agents import Agent

log = logging.getLogger("springbok")


class SkippingError(RuntimeError):
    """No update can be made any more; the message names the first quantity that was not finite."""


class SkippedUpdates:
    """Looks after the updates of an agent that has made `updates` of them so far.

    most: after so many skipped in a row the weights that were kept last return, with the optimiser's moments; after as many
    again the run ends. count: skipped since the program was started. in_a_row: those since the last sound one.
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
        """Keep a copy of weights and moments; to be called while nothing is skipped."""
        self._kept = copy.deepcopy(self._agent.state_dict())
        self._kept_at = self._updates

    def look(self, *, everything: bool = False) -> None:
        """Judge the updates since the last call, of which a GPU's newest is left out unless everything is asked for.

        Raises SkippingError.
        """
        for quantity in self._agent.take_skip_reasons(everything=everything):
            self._updates += 1
            if quantity:
                self._skip(quantity)
            else:
                self.in_a_row = 0

    def newest_is_sound(self) -> bool:
        """Whether the last of all updates was not skipped; waits for it. Raises SkippingError."""
        self.look(everything=True)
        return not self.in_a_row

    def _skip(self, quantity: str) -> None:
        self.count += 1
        self.in_a_row += 1
        if self.in_a_row == 1:
            self._first = f"{quantity} not finite in update {self._updates:,}"
            log.warning("Skipped: %s", self._first)
        elif self.in_a_row == 2 * self._most:
            raise SkippingError(
                f"{self.in_a_row} updates in a row were skipped, though the weights of update {self._kept_at:,} returned after "
                f"{self._most} (max_skipped_updates={self._most}); the first cause: {self._first}"
            )
        if self.in_a_row == self._most:
            self._agent.load_state_dict(copy.deepcopy(self._kept), load_optimizer=True)
            log.warning("%d updates in a row were skipped: the weights of update %s return", self._most, f"{self._kept_at:,}")
