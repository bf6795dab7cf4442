"""One process trains in a run directory; its death frees the directory, whatever its children do."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import checked_files as module
from checked_files import LockedError
from learner.runs.directory import RunDirectory, check_run_folder
from learner.runs.lock import locked
from tests.support import REPOSITORY

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from learner.runs.lock import locked
from workers.processes import launcher
with locked(Path(sys.argv[1])):
    launcher.start_fork_server()
    subprocess.Popen(["sleep", "30"])
    print("ready", flush=True)
    time.sleep(30)
"""


def test_a_second_holder_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(LockedError, match=r"--resume_in=new") as caught, locked(tmp_path):
            pass
        line = str(caught.value)
        assert str(tmp_path) in line
        assert f"process {os.getpid()} on {socket.gethostname()}" in line
        assert "\n" not in line
    with locked(tmp_path):
        pass


def test_a_run_directory_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    with locked(run.path), pytest.raises(ValueError, match="^load: .*--resume_in=new"):
        check_run_folder(run)
    check_run_folder(run)


def test_a_killed_holder_frees_the_directory_though_its_children_live(tmp_path: Path) -> None:
    """The fork server was forked while the lock was held, and a program was started."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        try:
            with pytest.raises(LockedError, match=f"process {holder.pid} on "), locked(tmp_path):
                pass
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            time.sleep(0.1)
            with locked(tmp_path):
                pass
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_a_file_system_without_locks_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    held_twice = 0
    monkeypatch.setattr(module.fcntl, "flock", no_locks)
    with locked(tmp_path), locked(tmp_path):
        held_twice += 1
    monkeypatch.setattr(module, "fcntl", None)
    with locked(tmp_path), locked(tmp_path):
        held_twice += 1
    assert held_twice == 2


def test_a_full_disk_costs_only_the_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.socket, "gethostname", no_name)
    with locked(tmp_path), pytest.raises(LockedError, match="another process"), locked(tmp_path):
        pass
