"""Another commit of this repository in a temporary folder, and programs that run in either tree."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.termination import REPOSITORY

END_SECONDS = 20.0  # from SIGTERM to SIGKILL


@contextmanager
def unpacked(commit: str, repository: Path = REPOSITORY) -> Iterator[Path]:
    """Yield a temporary folder with the files of a commit, which `commit_hash` has named; it is removed at the end.

    The files come from `git archive`. Unlike a `git worktree`, the folder leaves no entry in the repository, even if this
    process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="springbok_commit_") as folder:
        archive, tree = Path(folder, "files.zip"), Path(folder, "tree")
        _git(repository, "archive", "--format=zip", f"--output={archive}", commit)
        shutil.unpack_archive(archive, tree)
        yield tree


def commit_hash(commit: str, repository: Path = REPOSITORY) -> str:
    """Return the full hash of a commit, given by any name that git accepts. Raises ValueError if there is none."""
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        reason = "" if isinstance(error, subprocess.CalledProcessError) else f" ({error})"
        raise ValueError(f"wanted a commit of this repository, got {commit!r}{reason}") from None


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextmanager
def started(tree: Path, arguments: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start `python arguments` in a tree; a program that still runs at the end is ended.

    output: file for standard output and standard error.
    """
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tree,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the program once
        ) as process,
    ):
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM first, so that the program can end processes of its own."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def finish(process: subprocess.Popen[bytes], output: Path) -> None:
    """Wait until a program has ended. Raises RuntimeError with its last line if its exit code is not 0."""
    if code := process.wait():
        lines = output.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        raise RuntimeError(f"wanted exit code 0, got {code}: {last.strip()}")
