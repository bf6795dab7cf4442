"""Command line of the benchmarks that are tables of independent rows: `faults`, `fuzz` and `fuzz_environments`."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from benchmarks.output import add_json

Row = TypeVar("Row")
Rows = Mapping[str, tuple[Callable[[int, random.Random, Path], Row], int]]
"""Name -> the function of a row, and its usual count. The function takes a count, a seeded generator and an empty folder."""


def read_command_line(description: str | None, rows: Rows[Row], counted: str) -> argparse.Namespace:
    """Return the options `rows`, `count`, `seed` and `json`. counted: the things of which each row has a count."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=rows, default=list(rows), help="rows to run; all by default")
    parser.add_argument("--count", type=int, help=f"{counted} in each row, instead of the row's own number")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything that a row chooses at random")
    add_json(parser)
    return parser.parse_args()


def run_rows(rows: Rows[Row], arguments: argparse.Namespace) -> Iterator[Row]:
    """Run the rows that were asked for, each with its own generator and temporary folder."""
    for name in arguments.rows:
        function, count = rows[name]
        with tempfile.TemporaryDirectory() as folder:
            yield function(arguments.count or count, random.Random(arguments.seed), Path(folder))
