"""Priorities reach the replays that drew the columns: at once on a CPU, one update later on a GPU, and before each save."""

from __future__ import annotations

import numpy as np
import torch

from learner.feeding.feedback import PriorityFeedback
from replay.priorities.priorities import Tickets

CPU = torch.device("cpu")


class Recorded:
    """Stands for a mixture. updates: what came, in order."""

    def __init__(self) -> None:
        self.updates: list[tuple[object, list[float]]] = []

    def update_priorities(self, tickets: object, errors: np.ndarray) -> None:
        self.updates.append((tickets, errors.tolist()))


def tickets_of(number: int) -> list[tuple[int, int, Tickets]]:
    return [(0, 0, Tickets(*(np.array([number]) for _ in range(3))))]


def test_a_cpu_sets_priorities_at_once() -> None:
    mixture, tickets = Recorded(), tickets_of(1)
    feedback = PriorityFeedback(mixture, CPU)  # type: ignore[arg-type]
    feedback.put(tickets, torch.tensor([0.5]))
    assert mixture.updates == [(tickets, [0.5])]


def test_a_gpu_sets_them_behind_the_next_update_or_before_a_save() -> None:
    mixture, tickets = Recorded(), [tickets_of(number) for number in range(3)]
    feedback = PriorityFeedback(mixture, CPU)  # type: ignore[arg-type]
    feedback._waits = False
    for number in range(2):
        feedback.put(tickets[number], torch.tensor([float(number)]))
        assert len(mixture.updates) == number
    feedback.settle()
    feedback.settle()
    assert [errors for _, errors in mixture.updates] == [[0.0], [1.0]]
    feedback.put(tickets[2], torch.tensor([2.0]))
    feedback.put((), None)
    assert [tickets for tickets, _ in mixture.updates] == tickets


def test_an_agent_or_a_batch_without_priorities_changes_nothing() -> None:
    mixture = Recorded()
    feedback = PriorityFeedback(mixture, CPU)  # type: ignore[arg-type]
    feedback.put(tickets_of(1), None)
    feedback.put((), torch.tensor([1.0]))
    feedback.settle()
    assert mixture.updates == []
