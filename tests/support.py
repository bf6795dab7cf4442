"""Helpers that several tests share: settings of small runs, and the program as a subprocess."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import main
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.metrics.hardware import family_of
from learner.plan import Plan, make_plan
from learner.settings.config import Config, make_config
from learner.settings.declarations import DEFAULT_AGENT
from learner.settings.schema import default_settings

REPOSITORY = Path(__file__).resolve().parent.parent

GOLDEN = REPOSITORY / "tests" / "golden"

CATCH: dict[str, Any] = {
    "env": "Catch-v0",
    "network": "mlp",
    "frames_stacked": 1,
    "worker_kind": "serial",
    "envs_per_worker": 4,
    "unroll_length": 10,
    "batch_size": 4,
    "learner_threads": 1,
    "log_period": 0.5,
    "environment_max_steps": 2000,
}
"""A run of seconds on the toy environment, in one process."""


def golden(file_name: str) -> list[dict[str, Any]]:
    """The recorded cases of a file in `tests/golden`: name, inputs and outputs."""
    return list(json.loads((GOLDEN / file_name).read_text())["cases"])


def same(first: Any, second: Any) -> bool:
    """Whether plain data and tensors are equal, bit for bit."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return (first.shape, first.dtype, first.numpy().tobytes()) == (second.shape, second.dtype, second.numpy().tobytes())
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and bool(first == second)


def small_config(**settings: Any) -> Config:
    """`CATCH` with other settings on top, settled for a machine of two cores without a GPU."""
    defaults = default_settings(settings.get("agent", DEFAULT_AGENT))
    settled, _ = fit_to_machine({**defaults, **CATCH, **settings}, Machine(cores=2, memory_bytes=8 * 10**9, gpu=None))
    return make_config(settled)


def small_plan(**settings: Any) -> Plan:
    """The plan of `small_config`."""
    return make_plan(small_config(**settings))


def catch_flags(**settings: Any) -> list[str]:
    """`CATCH` with other settings on top, as the command line says it."""
    return [f"--{name}={value}" for name, value in {**CATCH, **settings}.items()]


def run_program(*arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """`python main.py` with these arguments, to its end."""
    return subprocess.run(
        [sys.executable, "main.py", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def run_main(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As `run_program`, but in this process: it saves the seconds in which a new one imports PyTorch.

    It proves exit codes, messages and files. Signals, closed streams and processes that are left need `run_program`.
    """
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as changed:
        changed.enter_context(contextlib.chdir(REPOSITORY))
        changed.enter_context(contextlib.redirect_stdout(printed))
        changed.enter_context(contextlib.redirect_stderr(errors))
        changed.enter_context(mock.patch.dict(os.environ))
        changed.enter_context(mock.patch.object(sys, "path", [*sys.path]))  # a user's file adds its folder
        code = main.main(["main.py", *arguments])
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), errors.getvalue())


def children_named(name: str) -> list[int]:
    """This process's children, and theirs, that run under this name (Linux)."""
    found = []
    for process in family_of(os.getpid()):
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{process}")
            if (folder / "comm").read_text().strip() == name and runs(process):
                found.append(process)
    return found


def runs(process: int) -> bool:
    """Whether there is such a process, and no zombie (Linux)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
