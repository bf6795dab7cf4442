"""A lock that admits one training per run directory. The kernel releases it when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".lock"
LONGEST_HOLDER = 200  # characters of the holder's description that a message shows


class LockedError(ValueError):
    """Another process trains in this run directory; the message names it and says what to do."""


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run directory. The file `.lock` stays behind; only the lock on it counts.

    On a file system without locks nothing is held. Raises LockedError, or OSError if the file cannot be opened.
    """
    if fcntl is None:
        yield
        return
    # No other process may keep this descriptor: it would hold the lock of a learner that was killed. Programs do not inherit it
    # (Python opens files close-on-exec), and the fork server closes all descriptors before it forks.
    with (run / LOCK_NAME).open("a+", errors="backslashreplace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(_refusal(run, _holder(file.fileno()))) from None
        except OSError:  # a file system without locks, such as some on networks
            pass
        else:
            with contextlib.suppress(OSError):  # on a full disk the lock holds without a description of its holder
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                file.flush()
        yield


def _holder(descriptor: int) -> str:
    """The description that the holder of the lock has written into it."""
    try:
        text = os.pread(descriptor, LONGEST_HOLDER, 0).decode(errors="replace")
    except OSError:
        text = ""
    return " ".join(text.split()) or "another process"


def _refusal(run: Path, holder: str) -> str:
    return (
        f"load: wanted a run directory that no other process trains in, got {str(run)!r}, in which {holder} trains; "
        "--resume_in=new resumes in a new directory"
    )
