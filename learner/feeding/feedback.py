"""Priorities on their way from the learner back to the replays that drew the batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.engine.streams import Fence
from replay import Mixture
from replay.batch import BatchTickets


class _Pending(NamedTuple):
    """Priorities `[B]` in host memory, valid once `copied` is passed."""

    tickets: BatchTickets
    errors: np.ndarray
    copied: Fence


class PriorityFeedback:
    """Gives the priorities of each update to the mixture.

    A CPU has them at once. On a GPU they are copied in parallel with the next update and set behind it, so that the host never
    waits for the device.
    """

    def __init__(self, mixture: Mixture, device: torch.device) -> None:
        self._mixture = mixture
        self._device = device
        self._waits = device.type == "cpu"
        self._pending: _Pending | None = None

    def put(self, tickets: BatchTickets, priorities: Tensor | None) -> None:
        """Set the priorities of the update before, if they are still on their way, and begin with those of this update.

        priorities: `[B]`, as `UpdateReport.priorities`; None from an agent that has none.
        """
        self.settle()
        if not tickets or priorities is None:
            return
        errors = priorities.detach().to("cpu", non_blocking=True)
        copied = Fence(self._device)
        copied.record()
        self._pending = _Pending(tickets, errors.numpy(), copied)
        if self._waits:
            self.settle()

    def settle(self) -> None:
        """Set all priorities that are on their way. It comes before each save."""
        pending, self._pending = self._pending, None
        if pending:
            pending.copied.wait()
            self._mixture.update_priorities(pending.tickets, pending.errors)
