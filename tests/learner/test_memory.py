"""A run whose replays do not fit is refused in one line that says how to mend it; one that fits says what it takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from learner.memory import LEARNER_RESERVE, WORKER_RESERVE, check_memory, describe_memory, reserve_bytes
from tests.support import small_config


def config_of(*replays: dict[str, Any], **settings: Any) -> Any:
    return small_config(replay_parameters=json.dumps(list(replays)), **settings)


def test_replays_and_processes_must_fit_together() -> None:
    config = config_of({"type": "standard", "memory": "1GB", "sample_ratio": 1})
    check_memory(config, 10**9 + LEARNER_RESERVE)
    with pytest.raises(
        ValueError, match=r"^replay_parameters: wanted at most 1.00 GB of replays .*, got 1.00 GB; use "
    ) as caught:
        check_memory(config, 10**9 + LEARNER_RESERVE - 1)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    for said in ("of memory 2.00 GB are available now, 1.00 GB of it", "smaller capacity", "--use_replay_compression"):
        assert said in line


def test_less_than_the_processes_take_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="wanted at most 0.00 MB of replays"):
        check_memory(small_config(), 5)


def test_every_worker_process_counts() -> None:
    assert reserve_bytes(small_config(worker_kind="cpu", worker_count=3)) == LEARNER_RESERVE + 3 * WORKER_RESERVE
    assert reserve_bytes(small_config()) == LEARNER_RESERVE


def test_each_replay_and_the_total_are_told() -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    lines = describe_memory(config_of(queue, {"type": "standard", "memory": "250MB", "sample_ratio": 0.5}))
    assert lines[0].startswith("Replay queue: 3 trajectories of 10 steps, at most 0.00")
    assert re.fullmatch("Replay standard: at least [0-9,]+ trajectories of 10 steps, at most 0.25 GB", lines[1])
    assert lines[2] == "Replay memory: at most 0.25 GB, beside 1.00 GB for the processes"


def test_compression_reaches_the_replays() -> None:
    assert [replay.compress for replay in small_config().replays] == [False]
    assert [replay.compress for replay in small_config(use_replay_compression=True).replays] == [True]
