"""Detects what this process may use of its machine: cores, memory and GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from agents.compute import computes_bfloat16


@dataclass(frozen=True)
class Machine:
    """What this process may use.

    memory_bytes: available now, less where a container says so. bfloat16: the devices that multiply bfloat16 in hardware.
    """

    cores: int
    memory_bytes: int
    gpu: str | None
    bfloat16: frozenset[str] = frozenset()


def detect_machine() -> Machine:
    """Look at cores (affinity and container quota), memory and GPU."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    devices = ("cpu", "cuda") if gpu else ("cpu",)
    return Machine(available_cores(), _memory_bytes(), gpu, frozenset(filter(computes_bfloat16, devices)))


def free_gpu_memory() -> int:
    """Bytes of the GPU that nobody uses now."""
    return torch.cuda.mem_get_info()[0]


def available_cores() -> int:
    """Cores that this process may use: its affinity, or less where a container's quota allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def _memory_bytes(root: Path = Path("/")) -> int:
    """MemAvailable, or less where a control group of this process or one above it leaves less."""
    left = [_group_memory_left(group) for group in _memory_groups(root)]
    return min([_memory_available(root), *left])


def _memory_available(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # no Linux


def _memory_groups(root: Path) -> Iterator[Path]:
    """Folders of the control groups, versions 1 and 2, that may bound this process's memory."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _group_memory_left(group: Path) -> int:
    """Limit minus use; cached files that nobody looks at count as free, as the kernel drops them first."""
    limit = _first_line(group / "memory.max") or _first_line(group / "memory.limit_in_bytes")
    used = _first_line(group / "memory.current") or _first_line(group / "memory.usage_in_bytes")
    if not (limit.isdigit() and used.isdigit()):
        return sys.maxsize
    statistics = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
    cached = int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
    return max(0, int(limit) - int(used) + cached)


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
