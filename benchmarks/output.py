"""Output that several benchmarks share: values on the screen and in a JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tools.termination import unwind_when_terminated


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", type=Path, help="file for the result in JSON")


def write_json(path: Path | None, content: object) -> None:
    """Write `content` to the file that `--json` named, if any."""
    if path:
        path.write_text(json.dumps(content, indent=2) + "\n")


def print_values(values: Mapping[str, Any]) -> None:
    """Print one value a line behind its name, floats with three decimals."""
    width = max(map(len, values)) + 2
    for name, value in values.items():
        print(f"{name:{width}}{value:,.3f}" if isinstance(value, float) else f"{name:{width}}{value}")


def show_windows(
    description: str | None,
    measure: Callable[[list[str], int, float], Mapping[str, Any]],
    counted: str,
    count: int,
    seconds: float,
) -> None:
    """The main function of a benchmark that measures the program in windows of time.

    Args:
        description: what `--help` shows.
        measure: takes the flags of main.py, the number of windows and the seconds of each. Returns values by their names.
        counted: name of the option that says how many windows there are.
        count: its default.
        seconds: default of `--window`.
    """
    unwind_when_terminated()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{counted}", dest="count", type=int, default=count, help=f"number of {counted} (default: {count})")
    parser.add_argument("--window", type=float, default=seconds, help=f"seconds of each window (default: {seconds:g})")
    add_json(parser)
    parser.add_argument("settings", nargs="*", help="flags of main.py, after --")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error(f"--{counted}: wanted 1 or more, got {arguments.count}")
    result = measure(arguments.settings, arguments.count, arguments.window)
    print_values(result)
    write_json(arguments.json, dict(result))


def refuse_old_name(name: str) -> NoReturn:
    """Say that `benchmarks.NAME` is `tools.NAME` now."""
    print(f"error: wanted python -m tools.{name}, got benchmarks.{name}, its old name", file=sys.stderr)
    sys.exit(2)
