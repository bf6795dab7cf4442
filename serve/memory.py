"""The memory that is left for further clients."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

ROOT = Path("/")


def free_memory(root: Path = ROOT) -> float:
    """Bytes that the machine has left, or its container if that is less. Infinite where the system does not say."""
    system, group = _numbers(root / "proc/meminfo"), root / "sys/fs/cgroup"
    left = [1024 * system["MemAvailable:"]] if "MemAvailable:" in system else []
    with contextlib.suppress(OSError, ValueError):  # no control groups of version 2, or no limit, which is the word max
        used = int((group / "memory.current").read_text())
        # Cached files count as used, and the system drops them when memory is needed.
        cached = _numbers(group / "memory.stat").get("inactive_file", 0)
        left.append(int((group / "memory.max").read_text()) - used + cached)
    return min(left, default=math.inf)


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
