"""A worker's end of the central kind: shows the newest frames, asks, and takes the answer."""

from __future__ import annotations

import os

import numpy as np

from replay.trajectory import Arrays
from workers.policy import Acted, LearnerGone


class CentralPolicy:
    """Acts for one group of a worker's environments by asking the learner's process.

    exchange: the group's part (`exchange_of`). asks, answers: descriptors of the worker's pipes, a byte each time. Groups of
    one worker share them: they ask in turn, are answered in the order they asked in, and take the answers in that order.
    """

    def __init__(self, exchange: Arrays, group: int, asks: int, answers: int) -> None:
        self.version = -1
        self._exchange = exchange
        self._name = bytes([group])
        self._asks = asks
        self._answers = answers

    def refresh(self) -> None:
        """Nothing to do: each answer has the newest weights."""

    def ask(self, observations: np.ndarray, first: np.ndarray) -> None:
        self._exchange["frames"][:] = observations[:, -1]
        self._exchange["first"][:] = first
        try:
            os.write(self._asks, self._name)
        except BrokenPipeError:
            raise LearnerGone from None

    def answer(self) -> Acted:
        answered = os.read(self._answers, 1)
        if not answered:
            raise LearnerGone
        assert answered == self._name, f"answers in the order of asking: wanted {self._name!r}, got {answered!r}"
        told = self._exchange
        self.version = int(told["version"][0])
        features = told["features"] if told["features"].size else None
        return Acted(told["actions"], told["logits"], told["values"], features)
