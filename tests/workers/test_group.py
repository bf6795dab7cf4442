"""Worker processes: blocks come and go, faults are said aloud, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.networks import make_network
from learner.config import make_contract
from tests.support import REPOSITORY, small_config
from workers import Block, WorkerError, WorkerSetup
from workers.group import ProcessWorkers
from wrappers import make_spec

POISONED_FRAME = 0xA5


def make_workers(**changes: object) -> ProcessWorkers:
    config = small_config(worker_kind="cpu", worker_count=2)
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    setup = WorkerSetup(
        config.env, spec, config.network, make_contract(config, spec), config.workers, seeds=(5, 105), poison=True
    )
    workers = ProcessWorkers(replace(setup, **changes), network)  # type: ignore[arg-type]
    workers.weights.publish(network, 3)
    return workers


@pytest.fixture
def workers() -> Iterator[ProcessWorkers]:
    group = make_workers()
    yield group
    group.stop()


def poll_until(workers: ProcessWorkers, count: int, seconds: float = 60.0) -> list[Block]:
    blocks: list[Block] = []
    end = time.monotonic() + seconds
    while len(blocks) < count and time.monotonic() < end:
        blocks += workers.poll(0.5)
    return blocks


def test_blocks_come_from_every_worker_and_are_completely_written(workers: ProcessWorkers) -> None:
    workers.start()
    blocks = poll_until(workers, 4)  # two workers with two blocks each
    assert {(block.worker, block.number) for block in blocks} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    slots = workers.slots
    assert set(np.unique(slots["frames"])) <= {0, 255}
    assert POISONED_FRAME not in slots["frames"]
    assert np.isfinite(slots["behaviour_logits"]).all()
    assert (slots["policy_version"] == 3).all()
    assert ((slots["actions"] >= 0) & (slots["actions"] < 3)).all()
    assert sorted(set(slots["environment_id"].tolist())) == list(range(8))


def test_without_released_slots_no_worker_runs_ahead(workers: ProcessWorkers) -> None:
    workers.start()
    blocks = poll_until(workers, 4)
    assert workers.poll(0.5) == []
    workers.release(blocks[0])
    assert [(b.worker, b.number) for b in poll_until(workers, 1)] == [(blocks[0].worker, blocks[0].number)]


def test_a_killed_worker_is_noticed_at_once(workers: ProcessWorkers) -> None:
    workers.start()
    poll_until(workers, 4)
    os.kill(workers.pids[1], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1 .*-9"):
        poll_until(workers, 100)
    assert time.monotonic() - started < 5


def test_a_worker_that_raises_sends_its_traceback() -> None:
    workers = make_workers(network="no_such_network")
    try:
        workers.start()
        with pytest.raises(WorkerError, match=r"(?s)Traceback.*no_such_network"):
            poll_until(workers, 1)
    finally:
        workers.stop()


def test_stop_ends_every_process_and_gives_descriptors_back() -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    workers = make_workers()
    workers.start()
    poll_until(workers, 1)
    processes = workers.pids
    workers.stop()
    workers.stop()
    assert not any(Path(f"/proc/{pid}").is_dir() for pid in processes)
    if before:
        # Starting a process for the first time keeps one descriptor of the standard library's resource tracker.
        assert len(os.listdir("/proc/self/fd")) <= before + 1


PARENT = """
import sys, time
from tests.workers.test_group import make_workers, poll_until
if __name__ == "__main__":
    workers = make_workers()
    workers.start()
    poll_until(workers, 4)
    print(*(pid for pid in workers.pids), flush=True)
    time.sleep(60)
"""


def test_workers_die_with_a_killed_learner(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait()
    end = time.monotonic() + 5
    while any(_runs(pid) for pid in children) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in children)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
