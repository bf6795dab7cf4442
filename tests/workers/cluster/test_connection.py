"""A run's request to Ray: its own cluster, or another one with a copy of the program's code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from learner.settings.check import check_settings
from learner.settings.config import DEFAULTS
from tests.support import REPOSITORY, small_plan
from workers import WorkerConfig

pytest.importorskip("ray", reason="Ray is an optional package (requirements-ray.txt)")

from workers.cluster import connection

CONFIG = WorkerConfig(worker_kind="ray", worker_count=5)


def test_a_cluster_of_its_own_has_a_cpu_for_each_actor_and_room_for_its_objects() -> None:
    small, large = connection._options(CONFIG, 10), connection._options(CONFIG, 10**9)
    assert (small["num_cpus"], small["object_store_memory"]) == (5, connection.SMALLEST_STORE)
    assert large["object_store_memory"] == 10**9
    assert "runtime_env" not in small


def test_a_joined_cluster_gets_the_code_beside_what_the_user_asks_for() -> None:
    asked = '{"py_modules": ["mine.py"], "pip": ["minigrid"]}'
    options = connection._options(replace(CONFIG, ray_address="10.0.0.1:6379", ray_runtime_env=asked), 10)
    assert options["runtime_env"]["pip"] == ["minigrid"]
    *code, last = options["runtime_env"]["py_modules"]
    assert last == "mine.py"
    assert [Path(path).relative_to(REPOSITORY).as_posix() for path in code] == list(connection.CODE)
    assert all(Path(path).exists() for path in code)


def test_an_actor_needs_no_more_of_the_program_than_it_gets(tmp_path: Path) -> None:
    for name in connection.CODE:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, tmp_path / name)
    command = [sys.executable, "-c", "import workers.cluster.actor"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_workers_on_other_machines_take_no_memory_and_no_cores_of_this_one() -> None:
    from learner.machine.memory_check import host_memory

    here = host_memory(small_plan(worker_kind="ray", worker_count=8))
    elsewhere = host_memory(small_plan(worker_kind="ray", worker_count=8, ray_address="auto"))
    assert here == host_memory(small_plan(worker_kind="cpu", worker_count=8))
    assert elsewhere.processes < here.processes
    assert (elsewhere.environments, elsewhere.arena) == (0, here.arena)


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:10001", "anywhere", ":1"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="^ray_address: wanted local, auto or HOST:PORT, got "):
        check_settings({**DEFAULTS, "ray_address": address})


def test_a_missing_package_and_reproducible_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="^reproducible: wanted worker_kind serial or auto with it, got 'ray'$"):
        check_settings({**DEFAULTS, "worker_kind": "ray", "reproducible": True})
    monkeypatch.setattr("learner.settings.check.find_spec", lambda name: importlib.util.find_spec(f"no_{name}"))
    with pytest.raises(ValueError, match=r"^worker_kind: wanted the package ray.*requirements-ray\.txt"):
        check_settings({**DEFAULTS, "worker_kind": "ray"})
