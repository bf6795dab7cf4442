"""A lock that admits one training per run directory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import checked_files


def locked(run: Path) -> AbstractContextManager[None]:
    """Hold the lock of a run directory. Raises LockedError, or OSError if the file of the lock cannot be opened."""

    def refusal(holder: str) -> str:
        return (
            f"load: wanted a run directory that no other process trains in, got {str(run)!r}, in which {holder} trains; "
            "--resume_in=new resumes in a new directory"
        )

    return checked_files.locked(run, refusal)
