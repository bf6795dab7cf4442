"""A worker's end of the central kind: it passes the newest frames to the learner's process and takes the actions."""

from __future__ import annotations

import os

import numpy as np

from replay.trajectory import Arrays
from workers.central.exchange import ACTIONS, FIRST, FRAME, STATE, VERSION, WITH_STATE
from workers.policy import Acted, LearnerGone


class CentralPolicy:
    """Acts for one group of a worker's environments by asking the learner's process.

    Groups of one worker share the pipes. They ask in turn and are answered in that order.

    Args:
        exchange: the group's part of the arena (`exchange_of`).
        group: its number within the worker.
        asks, answers: descriptors of the worker's pipes; each message is one byte, the group's number.
    """

    def __init__(self, exchange: Arrays, group: int, asks: int, answers: int) -> None:
        self.version = -1
        self._exchange = exchange
        others = (FRAME, FIRST, ACTIONS, VERSION, WITH_STATE, STATE)
        self._fields = {name: array for name, array in exchange.items() if name not in others}
        self._with_state = False
        self._name = bytes([group])
        self._asks = asks
        self._answers = answers

    def refresh(self) -> None:
        """Do nothing: the learner acts with its newest weights each time."""

    def ask(self, observations: np.ndarray, first: np.ndarray, *, with_state: bool = False) -> None:
        self._exchange[FRAME][:] = observations[:, -1]
        self._exchange[FIRST][:] = first
        self._with_state = with_state
        if WITH_STATE in self._exchange:
            self._exchange[WITH_STATE][:] = with_state
        try:
            # The byte follows the frames, because it hands the group's part of the exchange to the learner's process.
            os.write(self._asks, self._name)
        except BrokenPipeError:
            raise LearnerGone from None

    def answer(self) -> Acted:
        answered = os.read(self._answers, 1)
        if not answered:
            raise LearnerGone
        assert answered == self._name, f"answers in the order of asking: wanted {self._name!r}, got {answered!r}"
        self.version = int(self._exchange[VERSION][0])
        return Acted(self._exchange[ACTIONS], self._fields, self._exchange[STATE] if self._with_state else None)
