"""Output that several benchmarks share: values on the screen and in a JSON file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
