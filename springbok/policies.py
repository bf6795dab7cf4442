"""Loads trained policies into this process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from springbok.process import PROGRAM, Refused

if TYPE_CHECKING:
    from learner.export.acting import Policy

ROOMS = ("setting", "checked_files", "wrappers", "replay", "agents", "workers", "learner")
"""The program's modules and packages that a policy needs. They keep their names in this process."""


def load(run: str | Path = "latest", *, seed: int = 1) -> Policy:
    """The trained policy of a run, its best checkpoint (`RUN/best`) or a checkpoint file. It acts on the CPU.

    The environment is made once, because only it knows its spaces. seed: of actions that are sampled.

    Raises Refused with one line if there is no such checkpoint, or if other modules of this process have the names of the
    program's.
    """
    _import_program()
    from learner.export.acting import load_policy

    try:
        return load_policy(str(run), seed)
    except ValueError as error:
        raise Refused(" ".join(str(error).split())) from error


def _import_program() -> None:
    """Import the program's packages. Python's path is the same afterwards: packages find their modules by themselves."""
    if "learner.export.acting" in sys.modules:
        return
    sys.path.insert(0, str(PROGRAM))
    try:
        for name in ROOMS:
            module = importlib.import_module(name)
            places = [*getattr(module, "__path__", ()), module.__file__ or ""]
            if not all(Path(place).resolve().is_relative_to(PROGRAM) for place in places if place):
                raise Refused(f"load: wanted the program's own {name}, got {places[0]}, which this process has imported before")
        importlib.import_module("learner.export.acting")
    finally:
        sys.path.remove(str(PROGRAM))
