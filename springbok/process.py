"""Starts the program's main.py in a process of its own, and is the console command `springbok`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
PROGRAM = _HERE / "program" if (_HERE / "program").is_dir() else _HERE.parent
"""The folder of main.py: the clone, or the folder below this package that a wheel holds it in."""

REFUSED = 2
"""The program's exit code for bad input."""
END_SECONDS = 60.0
"""Most seconds in which a program ends after it is asked to, while its lines are no longer read."""

# The process saves and ends if this one dies. PR_SET_PDEATHSIG is 1 in linux/prctl.h, and it survives exec. Code between fork
# and exec (`preexec_fn`) could hang in a notebook, which has many threads.
_START = f"""
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})
if sys.argv[1]:
    os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Refused(ValueError):
    """The program refused its input. The message is its one line."""


class Failed(RuntimeError):
    """The program failed. The message is its last line about an error, or its last line."""


def flag(name: str, value: Any) -> str:
    """A setting as the command line writes it: `--name=value`, with JSON for lists and dicts."""
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, dict | list | tuple):
        value = json.dumps(value)
    return f"--{name}={value}"


def start(arguments: Sequence[str], cores: Iterable[int] = (), **options: Any) -> subprocess.Popen[Any]:
    """Start Python with these arguments. The process gets SIGTERM if this one dies.

    Args:
        arguments: those of Python.
        cores: the cores that the process may use; empty for those of this process.
        options: those of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, ",".join(map(str, cores)), *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal comes through this process alone, as an interrupt of a notebook does
        **options,
    )


def run(
    mode: str, settings: Mapping[str, Any], show: Callable[[str], object], further: Mapping[str, str] | None = None
) -> None:
    """Run `main.py --op_mode=MODE` to its end.

    A KeyboardInterrupt of this process is Ctrl-C for the program: it is raised here once the program has ended.

    Args:
        settings: flags by name.
        show: is called with each line that the program prints, errors excepted.
        further: environment variables in addition to those of this process.

    Raises Refused or Failed with one line.
    """
    arguments = [str(PROGRAM / "main.py"), flag("op_mode", mode), *(flag(name, value) for name, value in settings.items())]
    environment = {**os.environ, **(further or {})}
    process = start(arguments, stdout=subprocess.PIPE, text=True, errors="backslashreplace", env=environment)
    last = _follow(process, show)
    if process.returncode == REFUSED:
        raise Refused(last)
    if process.returncode:
        raise Failed(last or f"wanted exit code 0, got {process.returncode}")


def _follow(process: subprocess.Popen[str], show: Callable[[str], object]) -> str:
    """Pass on the lines and the interrupts until the process ends. Returns its last line about an error, or its last line."""
    assert process.stdout is not None
    last, error, interrupted = "", "", False
    with process.stdout as lines:
        try:
            while process.returncode is None:
                try:
                    for line in lines:
                        last = line.rstrip("\n")
                        if last.startswith("error: "):
                            error = last.removeprefix("error: ")
                        else:
                            show(last)
                    process.wait()
                except KeyboardInterrupt:
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        finally:
            _end(process)
    if interrupted:
        raise KeyboardInterrupt
    return error or last


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that still runs because showing its lines failed. It saves first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """The console command: `springbok --op_mode=train ...` or `springbok train ...`. This process becomes the program."""
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-"):
        arguments[0] = flag("op_mode", arguments[0])
    os.execv(sys.executable, [sys.executable, str(PROGRAM / "main.py"), *arguments])
