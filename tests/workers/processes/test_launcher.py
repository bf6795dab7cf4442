"""Forked processes: what they inherit, how they end, and that nothing outlives the program."""

from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from replay.slot_store import SharedArrays
from replay.trajectory import Field
from tests.support import REPOSITORY, children_named, runs
from tests.workers.support import wait_until
from workers.processes import fork_server, launcher
from workers.processes.fork_server import MAX_REQUEST_BYTES, ForkRequest
from workers.processes.launcher import ForkServer, ForkServerGone, StartedProcess, start_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are spawned by the standard library")


@pytest.fixture(autouse=True)
def own_fork_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a fork server of its own; that of this process serves other tests."""
    monkeypatch.setattr(launcher, "_fork_server", None)
    yield
    if launcher._fork_server:
        launcher._fork_server.end()


def double_all(shared: SharedArrays, numbers: Connection, answers: Connection) -> None:
    """Runs in a child."""
    factor = numbers.recv()
    shared.arrays["values"] *= factor
    answers.send((os.getppid(), Path("/proc/self/comm").read_text().strip(), signal.getsignal(signal.SIGINT)))
    os._exit(7)


def sleep(seconds: float = 600.0) -> None:
    """Runs in a child."""
    time.sleep(seconds)


def wait_for_end_of_file(pipe: Connection) -> None:
    """Runs in a child: exits with 0 once the other end of its pipe is closed."""
    with pytest.raises(EOFError):
        pipe.recv()
    os._exit(0)


def send_open_descriptors(answers: Connection) -> None:
    """Runs in a child."""
    folder = Path("/proc/self/fd")
    answers.send({name: os.readlink(folder / name) for name in os.listdir(folder) if (folder / name).exists()})
    os._exit(0)


def start_a_process(answers: Connection) -> None:
    """Runs in a child, as an environment that has its simulator in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=answers.send, args=("from a grandchild",))
    process.start()
    process.join()
    os._exit(0)


def terminate_processes(answers: Connection) -> None:
    """Runs in a child, as an environment that ends its simulators when it is closed. A signal of its own ends nothing."""
    program = subprocess.Popen(["sleep", "600"])
    forks = [multiprocessing.get_context("fork").Process(target=sleep) for _ in range(20)]
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        program.terminate()
        for fork in forks:
            fork.start()
            fork.terminate()  # the signal may come before the fork has run at all
        for fork in forks:
            fork.join(10)
        answers.send({program.wait(10), *(fork.exitcode for fork in forks)})
    finally:
        program.kill()
        for fork in forks:
            fork.kill()
    os._exit(0)


def fail() -> None:
    """Runs in a child."""
    raise RuntimeError("failed on purpose")


def ended(child: StartedProcess, seconds: float = 60.0) -> int | None:
    """Wait for the end of a child. Returns its exit code."""
    child.join(seconds)
    return child.exitcode


def test_a_child_shares_memory_and_pipes_and_reports_its_exit_code() -> None:
    shared = SharedArrays({"values": Field((3,), "int64")})
    shared.arrays["values"][:] = (1, 2, 3)
    numbers_of_child, numbers = multiprocessing.Pipe(duplex=False)
    answers, answers_of_child = multiprocessing.Pipe(duplex=False)
    child = start_process(double_all, shared, numbers_of_child, answers_of_child, name="doubler")
    numbers_of_child.close()
    answers_of_child.close()
    assert child.exitcode is None
    wait_until(lambda: children_named("doubler") == [child.pid])
    numbers.send(5)
    parent, name, on_interrupt = answers.recv()
    assert launcher._fork_server
    assert (parent, name) == (launcher._fork_server.pid, "doubler")
    assert on_interrupt == signal.SIG_IGN, "Ctrl-C reaches the whole terminal"
    assert ended(child) == 7
    np.testing.assert_array_equal(shared.arrays["values"], [5, 10, 15])
    with pytest.raises(EOFError):  # no other process holds the child's end
        answers.recv()
    child.close()
    child.close()
    with pytest.raises(ValueError, match="closed"):
        child.kill()


def test_a_child_may_start_processes_with_the_standard_library() -> None:
    answers, answers_of_child = multiprocessing.Pipe(duplex=False)
    child = start_process(start_a_process, answers_of_child, name="child")
    answers_of_child.close()
    assert answers.recv() == "from a grandchild"
    assert ended(child) == 0


def test_sigterm_ends_processes_of_a_child_but_not_the_child() -> None:
    answers, answers_of_child = multiprocessing.Pipe(duplex=False)
    child = start_process(terminate_processes, answers_of_child, name="child")
    answers_of_child.close()
    assert answers.recv() == {-signal.SIGTERM}
    assert ended(child) == 0


def test_ctrl_c_is_blocked_in_the_fork_server_while_it_starts() -> None:
    """It must not end a fork server that still imports PyTorch."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    launcher.start_fork_server()
    assert launcher._fork_server
    status = Path(f"/proc/{launcher._fork_server.pid}/status").read_text()
    (blocked,) = re.findall(r"SigBlk:\s*([0-9a-f]+)", status)
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask, "here nothing has changed"


def test_children_start_within_milliseconds_once_the_fork_server_runs() -> None:
    start_process(sleep, name="first").kill()
    times = []
    for _ in range(5):
        started = time.monotonic()
        child = start_process(sleep, name="next")
        times.append(time.monotonic() - started)
        child.kill()
    assert min(times) < 0.3, "PyTorch alone takes longer to import"


def test_a_killed_child_differs_from_one_that_raises(capfd: pytest.CaptureFixture[str]) -> None:
    killed, failed = start_process(sleep, name="killed"), start_process(fail, name="failed")
    killed.kill()
    assert ended(killed) == -signal.SIGKILL
    assert ended(failed) == 1
    assert "failed on purpose" in capfd.readouterr().err
    killed.kill()  # does nothing, because the process has ended


def test_no_child_holds_descriptors_of_another() -> None:
    pipe_of_child, pipe = multiprocessing.Pipe(duplex=False)
    listener = start_process(wait_for_end_of_file, pipe_of_child, name="listener")
    other_pipe_of_child, other_pipe = multiprocessing.Pipe(duplex=False)
    other = start_process(wait_for_end_of_file, other_pipe_of_child, name="other")
    pipe.close()
    assert ended(listener) == 0, "no other process holds the end that was closed"
    assert other.exitcode is None
    other_pipe.close()
    assert ended(other) == 0


def test_a_child_holds_only_the_descriptors_of_its_arguments() -> None:
    """In a process of its own: libraries that other tests import, such as Ray's, open pipes of their own in each child."""
    code = f"from {__name__} import check_descriptors_of_a_child; check_descriptors_of_a_child()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as wanted\n"


def check_descriptors_of_a_child() -> None:
    start_process(sleep, name="other").kill()
    other = start_process(sleep, name="other")
    answers, answers_of_child = multiprocessing.Pipe(duplex=False)
    start_process(send_open_descriptors, answers_of_child, name="child")
    answers_of_child.close()
    found = answers.recv()
    other.kill()
    assert found["0"] == os.devnull
    others = [target for name, target in found.items() if int(name) > 2 and target != os.devnull]
    assert [target.partition(":")[0] for target in others] == ["pipe"]
    print("as wanted")


INHERITED: list[io.FileIO] = []


def write_to_inherited_files(answers: Connection) -> None:
    """Runs in a child."""
    for file in INHERITED:
        file.write(b"Wait")
    answers.send("whole")
    os._exit(0)


def test_what_writes_to_a_file_of_the_parent_writes_into_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the run's log in a pipe would be read as the length of a message."""
    with contextlib.ExitStack() as opened:
        monkeypatch.setitem(
            globals(), "INHERITED", [opened.enter_context(io.FileIO(tmp_path / str(i), "w")) for i in range(20)]
        )
        answers, answers_of_child = multiprocessing.Pipe(duplex=False)
        child = start_process(write_to_inherited_files, answers_of_child, name="child")
        answers_of_child.close()
        assert answers.recv() == "whole"
        assert ended(child) == 0
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


def test_starting_processes_leaves_no_descriptor_open() -> None:
    def descriptors(process: int) -> int:
        return len(os.listdir(f"/proc/{process}/fd"))

    def start_and_end() -> None:
        shared = SharedArrays({"values": Field((3,), "int64")})
        pipe_of_child, pipe = multiprocessing.Pipe(duplex=False)
        child = start_process(wait_for_end_of_file, pipe_of_child, name="child")
        pipe_of_child.close()
        pipe.close()
        assert ended(child) == 0
        child.close()
        shared.close()

    start_and_end()
    time.sleep(0.1)
    assert launcher._fork_server
    before = descriptors(os.getpid()), descriptors(launcher._fork_server.pid)
    for _ in range(20):
        start_and_end()
    assert descriptors(os.getpid()) == before[0]
    wait_until(lambda: descriptors(launcher._fork_server.pid) <= before[1])  # it reports an exit before it closes the pipe
    assert children_named("child") == []


def test_children_die_with_the_fork_server_and_another_one_takes_its_place() -> None:
    child = start_process(sleep, name="child")
    assert launcher._fork_server
    first = launcher._fork_server.pid
    os.kill(first, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert launcher.died_with(child) == first
    wait_until(lambda: children_named("child") == [])
    second = start_process(sleep, name="child")
    assert launcher._fork_server.pid != first
    second.kill()
    assert ended(second) == -signal.SIGKILL
    assert launcher.died_with(second) is None


@pytest.mark.parametrize("hangs", [False, True])
def test_a_fork_server_that_dies_or_hangs_during_a_request_is_replaced(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    start_process(sleep, name="child").kill()
    assert launcher._fork_server
    first = launcher._fork_server.pid
    os.kill(first, signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (first, signal.SIGKILL))
    if hangs:
        monkeypatch.setattr(launcher, "START_SECONDS", 4.0)
    else:
        timer.start()
    child = start_process(sleep, name="child")
    assert child.exitcode is None
    assert launcher._fork_server.pid != first
    assert not runs(first)
    child.kill()


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[ForkRequest] = []

    def gone(self: ForkServer, request: ForkRequest) -> StartedProcess:
        requests.append(request)
        raise ForkServerGone("the process that forks the others has ended")

    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "fork", gone)
        with pytest.raises(OSError, match="has ended"):
            start_process(sleep, name="child")
    assert len(requests) == 2, "one retry"
    with pytest.raises(ValueError, match="wanted at most"):
        start_process(sleep, bytes(MAX_REQUEST_BYTES), name="child")


def fork_nothing() -> int:
    """Replaces `os.fork` in the fork server."""
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_fork_server_that_cannot_fork_reports_the_error_and_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        os.fork = fork_nothing
        mine.close()
        try:
            fork_server.run_fork_server(its, os.getppid())
        finally:
            os._exit(0)
    its.close()
    request = ForkRequest(sleep, (), "child")
    for _ in range(2):
        status, status_writer = os.pipe()
        socket.send_fds(mine, [request.pickled], [status_writer])
        os.close(status_writer)
        with pytest.raises(OSError, match="temporarily unavailable"):
            launcher.ForkedProcess(status, os.getpid())
    mine.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "it ends once its parent has closed the socket"


PROGRAM = """
import os, sys, time
from tests.workers.processes.test_launcher import sleep
from workers.processes import launcher

if __name__ == "__main__":
    launcher.start_fork_server()
    print(launcher._fork_server.pid, *(launcher.start_process(sleep, name="child").pid for _ in range(3)), flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_nothing_outlives_the_program(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)},
    )
    assert program.stdout
    processes = [int(pid) for pid in program.stdout.readline().split()]
    assert len(processes) == 4
    if how == "killed":
        program.kill()
    program.wait(60)
    wait_until(lambda: not any(map(runs, processes)), 5.0)
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
