"""Learners in threads of one process, connected as those in processes are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import HashStore

from agents import Agent
from learner.ranks import group as module
from learner.ranks.group import LearnerGroup

Result = TypeVar("Result")
SECONDS = 20.0


def together(count: int, function: Callable[[LearnerGroup], Result]) -> list[Result]:
    """Call a function on `count` connected learners, each in a thread. Returns the results by rank, or raises an error."""
    store, results, errors = HashStore(), {}, []
    store.set_timeout(timedelta(seconds=SECONDS))

    def learner(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            group = LearnerGroup(rank, count, store, 0, torch.device("cpu"))
            results[rank] = function(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=learner, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if errors:
        raise errors[0]
    assert len(results) == count, "a learner hangs"
    return [results[rank] for rank in range(count)]


def short_answers(monkeypatch: Any, seconds: float) -> None:
    """Let learners wait only so long for each other."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", seconds)


def numbers_of(agent: Agent) -> dict[str, Tensor]:
    """Everything in an agent's state that learning changes, by name."""
    state = agent.state_dict()
    flat = {f"{module}.{name}": value for module in state["modules"] for name, value in state["modules"][module].items()}
    for group, numbers in state["numbers"].items():
        flat |= {f"{group}.{name}": value for name, value in numbers.items()}
    return {name: value.clone() for name, value in flat.items()}
