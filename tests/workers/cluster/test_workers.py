"""Workers in the actors of a Ray cluster of two nodes on this machine. All tests but the last share the cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.hardware import family_of
from learner.runs.directory import RunDirectory
from tests.support import REPOSITORY, catch_flags, run_main, run_program, runs
from tests.workers.support import POISONED_FRAME, make_learned_and_setup, poll_until, wait_until
from tools.plan import PlannedRun
from workers import WorkerError
from workers.processes.supervisor import ProcessWorkers

ray = pytest.importorskip("ray", reason="Ray is an optional package (requirements-ray.txt)")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with four CPUs each, to which this process is not connected."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 4, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=node)
    found.add_node(**{name: value for name, value in node.items() if name != "include_dashboard"})
    yield found
    found.shutdown()


def make_workers(cluster: Any, network: str = "mlp", **settings: Any) -> ProcessWorkers:
    from workers.cluster.workers import RayWorkers

    given = {"worker_kind": "ray", "ray_address": cluster.address, "worker_count": 2, **settings}
    learned, setup = make_learned_and_setup(network, **given)
    workers = RayWorkers(setup, learned)
    workers.weights.publish(learned, 3)
    return workers


@pytest.fixture
def workers(cluster: Any) -> Iterator[ProcessWorkers]:
    group = make_workers(cluster)
    yield group
    group.stop()


def nodes_of(workers: ProcessWorkers) -> list[str]:
    return [handle._node for handle in workers._handles]  # type: ignore[attr-defined]


def test_blocks_arrive_whole_and_actors_wait_while_none_is_free(
    workers: ProcessWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[int] = []
    monkeypatch.setattr(ray, "put", lambda value, original=ray.put: put.append(value.nbytes) or original(value))
    workers.start()
    blocks = poll_until(workers, 4)  # two workers with two blocks each
    assert {(block.worker, block.number) for block in blocks} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    slots = workers.slots
    assert POISONED_FRAME not in slots["frames"]
    assert np.isfinite(slots["behaviour_policy"]).all()
    assert (slots["policy_version"] == 3).all()
    assert sorted(set(slots["environment_id"].tolist())) == list(range(8))
    assert len(set(nodes_of(workers))) == 2  # spread over the nodes

    assert workers.poll(0.5) == []
    workers.weights.publish(workers.setup.make_network(), 7)
    for block in blocks[:2]:
        workers.release(block)
    again = poll_until(workers, 2)
    assert set(again) == set(blocks[:2])
    for block in again:
        assert (slots["policy_version"][block.first_slot :][: block.slot_count] == 7).all()
    assert put == [workers.shared.arrays["weights"][0].nbytes] * 2  # once a version
    busy, waited = workers.seconds[again[0].worker][:3].sum(), workers.seconds[again[0].worker][3]
    assert busy > 0
    assert waited > 0.4


def test_actors_that_die_or_hang_are_replaced_within_the_budget(
    cluster: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.cluster.workers.NETWORK_SECONDS", 0.0)
    workers = make_workers(cluster, max_worker_restarts=1, worker_timeout=0.5)  # 5 s a trajectory
    try:
        workers.start()
        held = poll_until(workers, 4)
        before = workers.pids
        os.kill(before[0], signal.SIGKILL)
        for block in held:
            workers.release(block)  # its next call fails
        held = poll_until(workers, 4)
        assert {block.worker for block in held} == {0, 1}
        assert workers.restarts == 1
        assert workers.pids[0] not in (0, before[0])
        assert workers.pids[1] == before[1]
        stopped = workers.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        for block in held:
            workers.release(block)
        with pytest.raises(WorkerError, match="2 times within an hour"):
            poll_until(workers, 3)
    finally:
        workers.stop()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    lost, hung = lines
    assert lost.startswith("worker 0 was lost: ")
    assert hung.startswith("worker 0 hung: no trajectories for ")
    assert "\n" not in lost
    wait_until(lambda: not runs(stopped))


def test_an_error_in_an_actor_arrives_as_that_of_a_worker_process(cluster: Any) -> None:
    workers = make_workers(cluster, network="nature", worker_count=1, max_worker_restarts=0)
    try:
        workers.start()
        with pytest.raises(WorkerError, match=r"(?s)Traceback.*network nature.*worker \d failed: .*network nature") as caught:
            poll_until(workers, 1)
    finally:
        workers.stop()
    assert str(caught.value).splitlines()[-1].startswith("worker ")


def test_the_actors_of_a_lost_node_move_to_another_and_count_once(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = cluster.add_node(num_cpus=4, object_store_memory=100 * 2**20)
    workers = make_workers(cluster, worker_count=6, envs_per_worker=2, max_worker_restarts=1)
    try:
        workers.start()
        blocks = poll_until(workers, 12)
        on_node = [worker for worker, name in enumerate(nodes_of(workers)) if name == node.node_id]
        assert len(on_node) == 2
        cluster.remove_node(node)
        for block in blocks:
            workers.release(block)
        assert {block.worker for block in poll_until(workers, 12)} == set(range(6))
        assert workers.restarts == 2
        assert node.node_id not in nodes_of(workers)
    finally:
        workers.stop()
    # Either loss may be noticed first.
    lines = sorted(record.getMessage() for record in caplog.records if "failure" in record.getMessage())
    assert lines == [
        f"worker {worker} was lost with its node {node.node_id[:8]} (failure 1 within an hour, 1 allowed)" for worker in on_node
    ]


def test_an_agent_that_learns_on_policy_gets_rows_of_the_newest_version(cluster: Any) -> None:
    workers = make_workers(cluster, agent="a2c", batch_size=8)
    try:
        assert workers.setup.config.blocks_per_worker == 1
        workers.start()
        for version in (4, 5, 6):
            blocks = poll_until(workers, 2)
            assert (workers.slots["policy_version"] == version - 1).all()
            workers.weights.publish(workers.setup.make_network(), version)
            for block in blocks:
                workers.release(block)
    finally:
        workers.stop()


def test_the_program_learns_catch_and_leaves_the_cluster_as_it_was(cluster: Any, tmp_path: Path) -> None:
    """Random play has the mean return -0.5. A run that settles for four columns of five has 0.6."""
    done = run_main(
        "--op_mode=train",
        "--preset=quick",
        "--worker_kind=ray",
        f"--ray_address={cluster.address}",
        "--worker_count=2",
        "--environment_max_steps=20000",
        "--lr=0.004",
        "--entropy_loss_weight=0.05",
        f"--results_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cluster of 2 nodes" in done.stdout
    assert json.loads(RunDirectory(tmp_path / "latest").summary.read_text())["mean_return"] > 0.3
    assert actors() == []


def actors() -> list[int]:
    """Processes of worker actors, which Ray names after their class."""
    return [process for process in family_of(os.getpid()) if runs(process) and "RolloutActor" in command_of(process)]


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_trial_whose_machine_is_lost_continues_on_another(cluster: Any, tmp_path: Path) -> None:
    from tools.tuning.on_ray import Cluster

    settings = {"agent": "ppo", "worker_kind": "serial", "network": "mlp", "environment_max_steps": 10**9, "preflight": False}
    plan = PlannedRun("study", "trial 1", "CartPole-v1", 1, {**settings, "checkpoint_seconds": 0.5}, tmp_path)
    plan.write()

    def passes(update: int) -> bool:
        assert program.wait(0) is None
        return bool((run := plan.run()) and [path for path in run.checkpoint_paths() if update_of(path) > update])

    with Cluster(cluster.address, 4) as machines:
        assert machines.parts == [[]] * 4
        program = machines.start(plan, [])
        wait_until(lambda: passes(0))
        ray.kill(program._starter)
        wait_until(lambda: program._losses == 1 or program.wait(0))
        wait_until(lambda: passes(max(map(update_of, plan.run().checkpoint_paths()))))
        program.stop()
        wait_until(lambda: program.wait(0) is not None)
    assert program.wait(0) == 0
    assert len(list(tmp_path.glob("CartPole-v1_*"))) == 1


def update_of(path: Path) -> int:
    return int(path.stem.removeprefix("update_"))


def test_actors_compute_in_bfloat16_and_end_with_a_killed_learner(cluster: Any, tmp_path: Path) -> None:
    ray_flags = {"worker_kind": "ray", "ray_address": cluster.address, "worker_count": 2}
    flags = catch_flags(**ray_flags, precision="bfloat16", environment_max_steps=10**9, checkpoint_period=10)
    command = [sys.executable, "main.py", "--op_mode=train", *flags, f"--results_dir={tmp_path}"]
    program = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(tmp_path.rglob("update_*.pt")))
        wait_until(lambda: len(actors()) == 2)  # the first checkpoint may come before the second actor
    finally:
        program.kill()
        program.wait()
    wait_until(lambda: not actors())


def test_no_process_of_a_cluster_that_the_run_started_is_left(tmp_path: Path) -> None:
    flags = catch_flags(worker_kind="ray", worker_count=1, environment_max_steps=2000)
    command = [sys.executable, "main.py", "--op_mode=train", *flags, f"--results_dir={tmp_path}"]
    program = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen: set[int] = set()
    while program.poll() is None:
        seen |= {process for process in family_of(program.pid) if process != program.pid}
        time.sleep(0.1)
    assert program.returncode == 0
    assert len(seen) > 5  # Ray's own processes and the actors
    assert not any(map(runs, seen))


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    flags = catch_flags(worker_kind="ray", ray_address="127.0.0.1:1", worker_count=2)
    done = run_program("--op_mode=train", *flags, f"--results_dir={tmp_path}")
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).splitlines()
    assert "ray_address: wanted a Ray cluster that can be used, got '127.0.0.1:1'" in line
