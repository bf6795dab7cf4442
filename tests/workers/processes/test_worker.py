"""The main function of a worker process: its groups of environments share the free blocks."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from itertools import cycle
from multiprocessing.connection import Connection
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workers.clocks import CLOCKS
from workers.policy import LearnerGone
from workers.processes.worker import STOP, _BlockPipes, _fill_blocks

BLOCKS = 40


def return_blocks(free: Connection, filled: Connection, at_once: int) -> None:
    """The learner's part: give `at_once` blocks, then each filled one back, and stop after `BLOCKS` of them."""
    for number in range(at_once):
        os.write(free.fileno(), bytes([number]))
    for _ in range(BLOCKS):
        os.write(free.fileno(), os.read(filled.fileno(), 1))
    os.write(free.fileno(), bytes([STOP]))


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_groups_take_blocks_in_turn_however_rare_they_are(at_once: int) -> None:
    collected: Counter[str] = Counter()

    class Group:
        def __init__(self, name: str) -> None:
            self.name = name

        def steps(self, first_slot: int) -> Iterator[None]:
            for _ in range(3):
                yield
            collected[self.name] += 1

    (takes, gives), (reads, hands_over) = multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)
    setup: Any = SimpleNamespace(config=SimpleNamespace(blocks_per_worker=4, envs_per_group=2))
    blocks = _BlockPipes(takes, hands_over, np.zeros(len(CLOCKS)))
    groups: list[Any] = [Group("first"), Group("second")]
    turns = [_fill_blocks(blocks, group, setup, 0) for group in groups]
    learner = threading.Thread(target=return_blocks, args=(gives, reads, at_once))
    learner.start()
    with pytest.raises(LearnerGone):
        deque(map(next, cycle(turns)), maxlen=0)
    learner.join()
    assert BLOCKS <= collected.total() <= BLOCKS + 4
    assert abs(collected["first"] - collected["second"]) <= 2


def test_the_clock_advances_while_a_worker_waits_for_a_block() -> None:
    (takes, gives), (_reads, hands_over) = multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)
    seconds = np.zeros(len(CLOCKS))
    waiting = threading.Thread(target=_BlockPipes(takes, hands_over, seconds).take, args=("group",))
    waiting.start()
    deadline = monotonic() + 20
    while seconds[CLOCKS.index("wait")] == 0 and monotonic() < deadline:
        sleep(0.01)
    counted = seconds[CLOCKS.index("wait")]
    os.write(gives.fileno(), bytes([0]))
    waiting.join()
    assert counted > 0
