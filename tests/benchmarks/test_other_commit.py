"""Another commit's files stand beside the working tree for a while; nothing of them, and no program, outlives that."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.other_commit import commit_hash, finish, started, unpacked
from tests.support import REPOSITORY, runs


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *author, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, tagged `first` and `second`, and a change that is not committed."""
    folder = tmp_path / "repository"
    (folder / "package").mkdir(parents=True)
    git(folder, "init", "--quiet")
    for text in ("first", "second"):
        (folder / "package" / "file.txt").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", f"--message={text}")
        git(folder, "tag", text)
    (folder / "package" / "file.txt").write_text("changed")
    return folder


def test_a_commit_has_its_own_files_and_is_removed(repository: Path) -> None:
    before = git(repository, "status", "--porcelain")
    with unpacked(commit_hash("first", repository), repository) as tree:
        assert (tree / "package" / "file.txt").read_text() == "first"
    assert not tree.parent.exists()
    assert (repository / "package" / "file.txt").read_text() == "changed"
    assert git(repository, "status", "--porcelain") == before
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_commit_is_removed_after_an_interrupt(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), unpacked("second", repository) as tree:
        raise KeyboardInterrupt
    assert not tree.parent.exists()


@pytest.mark.parametrize("name", ["first", "HEAD~1"])
def test_a_commit_has_many_names(name: str, repository: Path) -> None:
    assert commit_hash(name, repository) == git(repository, "rev-parse", "first")


@pytest.mark.parametrize("name", ["third", "", "--all", "HEAD:package/file.txt", "nul\0"])
def test_an_unknown_commit_is_refused(name: str, repository: Path) -> None:
    with pytest.raises(ValueError, match="wanted a commit") as refused:
        commit_hash(name, repository)
    assert repr(name) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="HEAD"):
        commit_hash("HEAD", tmp_path)


def test_a_program_runs_in_its_tree(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:])")
    output = tmp_path / "output.txt"
    with started(tmp_path, ["main.py", "--a=1"], output) as process:
        finish(process, output)
    assert output.read_text() == f"{tmp_path} ['--a=1']\n"


def test_a_failed_program_is_reported_with_its_last_line(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    with (
        started(tmp_path, ["-c", "print('begins', flush=True); raise SystemExit('no such thing\\n')"], output) as process,
        pytest.raises(RuntimeError) as failed,
    ):
        finish(process, output)
    assert str(failed.value) == "wanted exit code 0, got 1: no such thing"


def test_a_program_that_ignores_the_first_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.other_commit.END_SECONDS", 0.1)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(600)"
    with started(tmp_path, ["-c", code], tmp_path / "output.txt") as process:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_stopped_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import pathlib, time; from benchmarks.other_commit import *; from tools.termination import *\n"
        "def main():\n"
        "    unwind_when_terminated()\n"
        "    with unpacked('HEAD') as tree:\n"
        "        with started(tree, ['-c', 'import time; time.sleep(600)'], tree / 'output.txt') as process:\n"
        "            print(process.pid, tree, flush=True); time.sleep(600)\n"
        "end_with(main)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None
        pid, tree = benchmark.stdout.readline().split()
        try:
            assert runs(int(pid))
            assert (Path(tree) / "main.py").is_file()
            benchmark.send_signal(number)
            assert benchmark.wait(30) == 128 + number
            assert not runs(int(pid))
            assert list(tmp_path.iterdir()) == []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
