"""Reads `--ray_runtime_env`. This file does not import Ray, so that the setting is checked without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LARGEST_FILE = 2**20  # bytes; a longer one is another file


def parse_runtime_env(text: str) -> dict[str, Any]:
    """The runtime environment that a setting describes: a JSON object, or the path of a file with one. Raises ValueError."""
    wanted = "ray_runtime_env: wanted a JSON object or the path of a file with one"
    try:
        content = text if text.lstrip().startswith("{") else _content(Path(text))
        found = json.loads(content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{wanted}, got {text[:200]!r} ({reason})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{wanted}, got {content[:200]!r}")
    return found


def _content(path: Path) -> str:
    """The text of a file. Raises OSError or ValueError. Devices are not read: some have no end."""
    if not path.is_file() and path.exists():
        raise ValueError("it is no file")
    with path.open() as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("it is too long")
    return content
