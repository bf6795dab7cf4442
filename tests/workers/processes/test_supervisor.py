"""Worker processes: blocks are filled and released, failures are reported, and no process or descriptor is left behind."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.trajectory import poison_arrays
from tests.support import REPOSITORY, runs
from tests.workers.support import POISONED_FRAME, make_learned_and_setup, poll_until, wait_until
from tests.wrappers.environments import HERE
from workers import WORKERS, Block, WorkerError
from workers.base import block_of
from workers.processes import launcher, supervisor
from workers.processes.heartbeat import start_timeout
from workers.processes.supervisor import ProcessWorkers
from workers.processes.worker import NICENESS
from workers.seeds import fresh_seed


def make_workers(network: str = "mlp", **settings: Any) -> ProcessWorkers:
    learned, setup = make_learned_and_setup(network, **{"worker_kind": "cpu", "worker_count": 2, **settings})
    workers = WORKERS[setup.config.worker_kind](setup, learned)
    assert isinstance(workers, ProcessWorkers)
    workers.weights.publish(learned, 3)
    return workers


@pytest.fixture
def workers() -> Iterator[ProcessWorkers]:
    group = make_workers()
    yield group
    group.stop()


def test_a_worker_may_be_gone_when_it_is_asked_for_its_stack(workers: ProcessWorkers) -> None:
    workers.start()
    wait_until(lambda: workers._handles)
    handle = workers._handles[0]
    os.kill(handle.pid, signal.SIGKILL)
    wait_until(lambda: not runs(handle.pid))
    handle.ask_for_stack(0.0)


def test_every_worker_fills_its_blocks_completely(workers: ProcessWorkers) -> None:
    workers.start()
    blocks = poll_until(workers, 4)  # two workers with two blocks each
    assert {(block.worker, block.number) for block in blocks} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    slots = workers.slots
    assert set(np.unique(slots["frames"])) <= {0, 255}
    assert POISONED_FRAME not in slots["frames"]
    assert np.isfinite(slots["behaviour_policy"]).all()
    assert (slots["policy_version"] == 3).all()
    assert ((slots["actions"] >= 0) & (slots["actions"] < 3)).all()
    assert sorted(set(slots["environment_id"].tolist())) == list(range(8))


def test_no_worker_fills_a_block_that_is_not_released(workers: ProcessWorkers) -> None:
    workers.start()
    blocks = poll_until(workers, 4)
    assert workers.poll(0.5) == []
    workers.release(blocks[0])
    assert [(b.worker, b.number) for b in poll_until(workers, 1)] == [(blocks[0].worker, blocks[0].number)]


def test_processes_start_before_the_weights_exist_and_collect_after_start() -> None:
    workers = make_workers()
    try:
        workers.prepare()
        wait_until(lambda: len(workers.pids) == 2)
        killed, other = workers.pids
        os.kill(killed, signal.SIGKILL)  # replaced as ever, without a block
        wait_until(lambda: workers.pids[0] != killed)
        assert workers.poll(1.0) == []
        workers.weights.publish(workers.setup.make_network(), 7)
        workers.start()
        assert len(poll_until(workers, 4)) == 4
        assert (workers.slots["policy_version"] == 7).all()
        assert workers.pids[1] == other
    finally:
        workers.stop()


def test_workers_run_with_a_raised_niceness() -> None:
    """The thread in which ale-py steps has it too. NumPy's thread has not, but it has no work."""
    workers = make_workers(env="PongNoFrameskip-v4", worker_count=1, envs_per_worker=1)
    try:
        workers.start()
        assert len(poll_until(workers, 2)) == 2
        threads = [int(name) for name in os.listdir(f"/proc/{workers.pids[0]}/task")]
        niceness = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
        assert niceness.count(min(19, os.nice(0) + NICENESS)) >= 2
    finally:
        workers.stop()


def test_stop_ends_processes_that_never_collected() -> None:
    workers = make_workers()
    workers.prepare()
    wait_until(lambda: len(workers.pids) == 2)
    workers.stop()
    assert not any(map(runs, workers.pids))
    assert workers.poll(0.0) == []


def poison(workers: ProcessWorkers, block: Block) -> None:
    poison_arrays({name: array[block.first_slot :][: block.slot_count] for name, array in workers.slots.items()})


def contents(workers: ProcessWorkers, block: Block) -> dict[str, np.ndarray]:
    return {name: array[block.first_slot :][: block.slot_count].copy() for name, array in workers.slots.items()}


def wait_for_another(workers: ProcessWorkers, pid: int, seconds: float = 5.0) -> None:
    """Wait until another process has replaced the only worker's."""
    end = time.monotonic() + seconds
    while workers.pids == [pid]:
        assert workers.poll(0.01) == []
        assert time.monotonic() < end, "not replaced"


def test_a_killed_worker_is_replaced_and_held_blocks_do_not_change() -> None:
    workers = make_workers(worker_count=1, max_worker_restarts=1, worker_timeout=1.0)
    try:
        workers.start()
        held, late = poll_until(workers, 2)
        before = contents(workers, held)
        first = workers.pids[0]
        os.kill(first, signal.SIGKILL)
        wait_for_another(workers, first)
        assert workers.restarts == 1
        assert workers._handles[0].seed == fresh_seed(workers.setup.seeds, 1)

        workers.weights.publish(workers.setup.make_network(), 9)
        poison(workers, late)
        workers.release(late)  # the dead worker had filled it
        assert poll_until(workers, 1) == [late]
        assert workers.poll(0.2) == []
        written = contents(workers, late)
        assert POISONED_FRAME not in written["frames"]
        assert (written["policy_version"] == 9).all()
        for name, array in contents(workers, held).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)

        os.kill(workers.pids[0], signal.SIGSTOP)
        workers.release(held)
        stopped = time.monotonic()
        with pytest.raises(WorkerError) as caught:
            poll_until(workers, 1)
        assert time.monotonic() - stopped < 5
        assert str(caught.value).splitlines()[-1] == "worker 0 was killed by SIGKILL (out of memory?)"  # the first cause
        assert "2 times" in str(caught.value)
        with pytest.raises(WorkerError):
            workers.poll(0.0)
        workers.release(late)  # a thread of the learner may release after the end
    finally:
        workers.stop()


def test_a_worker_may_be_killed_within_a_block_and_repeatedly_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No incomplete block is handed over, no descriptor or thread is left, and the last process works."""
    monkeypatch.setattr(supervisor, "CHECK_SECONDS", 0.02)
    workers = make_workers(worker_count=1, max_worker_restarts=5, unroll_length=3_000)
    block = Block(0, 0, 0, 4)
    try:
        workers.start()
        newest = workers.slots["frames"][block.first_slot]
        while POISONED_FRAME in newest[1]:
            assert workers.poll(0.001) == []
        pid = workers.pids[0]
        os.kill(pid, signal.SIGKILL)
        wait_for_another(workers, pid)
        assert POISONED_FRAME in newest[-1]
        poison(workers, block)
        held = descriptors_and_threads()
        for restarts in range(2, 6):
            pid = workers.pids[0]
            os.kill(pid, signal.SIGKILL)
            wait_for_another(workers, pid)
            assert workers.restarts == restarts
        assert descriptors_and_threads() == held
        assert poll_until(workers, 1, 120.0) == [block]
        assert POISONED_FRAME not in contents(workers, block)["frames"]
    finally:
        workers.stop()


def descriptors_and_threads() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_the_start_timeout_grows_with_the_environments_of_the_run() -> None:
    """An Atari environment takes up to 0.2 s of a core to build, so 1600 take 320 s of a core."""
    workers = make_workers(env="PongNoFrameskip-v4", envs_per_worker=800)
    try:
        workers.prepare()
        assert [handle.heartbeat.limit for handle in workers._handles] == [start_timeout(1600)] * 2
        assert start_timeout(1600) > 4 * 320
        handle = workers._handles[0]
        handle.hung_since = math.inf  # a time at which the supervisor does not kill the worker
        assert handle.cause().reason == f"worker 0 hung: no step within {start_timeout(1600):.0f} s of its start"
    finally:
        workers.stop()


def test_the_error_holds_the_traceback_of_a_worker_that_raises() -> None:
    workers = make_workers(network="nature", max_worker_restarts=0)
    try:
        workers.start()
        with pytest.raises(WorkerError, match=r"(?s)Traceback.*network nature.*worker \d failed: .*network nature"):
            poll_until(workers, 1)
    finally:
        workers.stop()


def closing(path: Path, **arguments: Any) -> dict[str, Any]:
    """Settings with environments that write to a file when they are closed, see `tests.wrappers.environments.Closing`."""
    env_args = json.dumps({"path": str(path), **arguments})
    return {"env": f"{HERE}:TestClosing-v1", "env_args": env_args, "worker_count": 1, "envs_per_worker": 4}


def closed_by_workers(path: Path) -> int:
    return sum(name.startswith("worker") for name in path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("kind", ["cpu", "central"])
@pytest.mark.parametrize("stepped", [False, True])
def test_workers_close_their_environments_before_they_have_stepped_and_within_a_block(
    kind: str, stepped: bool, tmp_path: Path
) -> None:
    """The block would take minutes."""
    path = tmp_path / "closed"
    workers = make_workers(worker_kind=kind, unroll_length=1000, **closing(path, pause=0.05))
    try:
        workers.start() if stepped else workers.prepare()
        wait_until(lambda: workers._handles and workers._handles[0].heartbeat.stepped == stepped)
        assert closed_by_workers(path) == 0
    finally:
        workers.stop()
    assert closed_by_workers(path) == 4


def test_a_worker_whose_environments_cannot_be_reset_closes_them(tmp_path: Path) -> None:
    path = tmp_path / "closed"
    workers = make_workers(max_worker_restarts=0, **closing(path, fails="reset"))
    try:
        workers.start()
        with pytest.raises(WorkerError, match="no display for this seed"):
            poll_until(workers, 1)
    finally:
        workers.stop()
    assert closed_by_workers(path) == 4


def test_a_worker_whose_environments_reset_slowly_together_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its resets takes less than the timeout, all four take longer."""
    monkeypatch.setattr(supervisor, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "STACK_SECONDS", 0.05)
    env: dict[str, Any] = {"env": f"{HERE}:TestSlow-v1", "env_args": '{"seconds": 0.2}', "envs_per_worker": 4}
    workers = make_workers(worker_count=1, worker_timeout=0.5, max_worker_restarts=0, unroll_length=5, **env)
    try:
        workers.start()
        assert len(poll_until(workers, 1)) == 1
    finally:
        workers.stop()


class NoMemory:
    """Its arrival in another process fails like the mapping of an arena for which there is no memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 45,)


def test_a_worker_that_finds_no_memory_at_its_start_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    workers = make_workers(max_worker_restarts=0)
    workers.setup = replace(workers.setup, network=NoMemory())  # type: ignore[arg-type]
    try:
        workers.start()
        with pytest.raises(WorkerError) as caught:
            poll_until(workers, 1)
    finally:
        workers.stop()
    assert "Traceback" not in str(caught.value) + capfd.readouterr().err
    assert re.fullmatch(r"worker \d failed: out of memory.*", str(caught.value).splitlines()[-1])


def test_stop_ends_every_process_and_closes_descriptors() -> None:
    first = make_workers()
    first.prepare()  # opens what stays open: sockets to the fork server and to the standard library's resource tracker
    first.stop()
    del first
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    workers = make_workers()
    workers.start()
    poll_until(workers, 1)
    processes = workers.pids
    workers.stop()
    workers.stop()
    assert not any(map(runs, processes))
    del workers  # its arrays keep the arena mapped
    gc.collect()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no fork server")
def test_workers_that_die_with_the_fork_server_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    workers = make_workers(max_worker_restarts=1)  # the deaths of both count as one failure
    try:
        workers.start()
        poll_until(workers, 4)
        before, fork_server = workers.pids, launcher._fork_server
        assert fork_server
        os.kill(fork_server.pid, signal.SIGKILL)
        wait_until(lambda: not set(before) & set(workers.pids))
        assert workers.restarts == 2
        reason = "died with the fork server (out of memory?) (failure 1 within an hour, 1 allowed)"
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert sorted(warnings) == [f"worker {worker} {reason}" for worker in (0, 1)]
        for worker, number in ((0, 0), (0, 1), (1, 0), (1, 1)):
            workers.release(block_of(workers.setup.config, worker, number))
        assert len(poll_until(workers, 4)) == 4
    finally:
        workers.stop()


PARENT = """
import sys, time
from dataclasses import replace
from pathlib import Path

WORKING = len(sys.argv) > 1 and sys.argv[1] == "working"
HERE = Path(__file__).parent

class Sleep:  # instead of the worker's imports
    def __reduce__(self):
        return exec, (f"import os, time; open(f'{HERE}/started_{{os.getpid()}}', 'w').close(); time.sleep(60)",)

if __name__ == "__main__":
    from dataclasses import replace
    from tests.workers.processes.test_supervisor import make_workers
    from tests.workers.support import poll_until
    workers = make_workers()
    if not WORKING:
        workers.setup = replace(workers.setup, network=Sleep())
    workers.start()
    if WORKING:
        poll_until(workers, 4)
    while not WORKING and len(list(HERE.glob("started_*"))) < 2:
        time.sleep(0.05)
    print(*workers.pids, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("what", ["working", "starting"])
def test_workers_die_with_a_killed_learner(tmp_path: Path, what: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), what],
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
    wait_until(lambda: not any(map(runs, children)), 5.0)
