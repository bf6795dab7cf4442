"""The name of a run's folder in a store. It differs from the run directory's name if another run had that name first."""

from __future__ import annotations

from checked_files import is_plain_name
from learner.runs.directory import RunDirectory

NAME_FILE = ".name_in_store"
"""Hidden, because it belongs to this machine's run directory: the mirror sends no hidden files."""


def name_in_store(run: RunDirectory) -> str:
    """The name of a run's folder in a store: the kept one, otherwise that of the run directory."""
    try:
        name = (run.path / NAME_FILE).read_text().strip()
    except (OSError, ValueError):
        name = ""
    return name if is_plain_name(name) else run.path.name


def keep_name(run: RunDirectory, name: str) -> None:
    """Keep the name for later commands. Raises OSError."""
    (run.path / NAME_FILE).write_text(f"{name}\n")
