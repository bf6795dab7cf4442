"""Detects what this process may use of its machine: cores, memory and GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from agents.compute import prefers_bfloat16

ROOT = Path("/")
UNLIMITED = sys.maxsize


@dataclass(frozen=True)
class Machine:
    """The resources that this process may use.

    Args:
        cores: logical processors.
        memory_bytes: memory that is available now.
        gpu: name of the GPU, None without one.
        bfloat16: the devices (`cpu`, `cuda`) that compute in bfloat16 sooner than in float32.
        gpus: number of GPUs, if there is one.
    """

    cores: int
    memory_bytes: int
    gpu: str | None
    bfloat16: frozenset[str] = frozenset()
    gpus: int = 1

    def part_of(self, learners: int) -> Machine:
        """The part that each of several learners may use."""
        return replace(self, cores=max(1, self.cores // learners), memory_bytes=self.memory_bytes // learners)


def detect_machine() -> Machine:
    """Cores, available memory and GPU of this process; limits of containers are included."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    devices = ("cpu", "cuda") if gpu else ("cpu",)
    fast = frozenset(filter(prefers_bfloat16, devices))
    return Machine(available_cores(), available_memory(), gpu, fast, torch.cuda.device_count() if gpu else 0)


def free_gpu_memory() -> int:
    """Bytes of GPU memory that are free now."""
    return torch.cuda.mem_get_info()[0]


def available_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: its CPU affinity, or the smallest quota of its control groups if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(_cores_of_group(group) for group in _control_groups(root, "cpu"))]))


def available_memory(root: Path = ROOT) -> int:
    """Bytes that are available: MemAvailable, or what one of this process's control groups leaves if that is less."""
    return min([_memory_of_system(root), *(_memory_left_in_group(group) for group in _control_groups(root, "memory"))])


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that may limit this process: its own group and those above it, versions 1 and 2.

    A quota of any group above limits its children too, so every folder up to the top counts. In a container /proc may name a
    group of the host, of which only the top is mounted.
    """
    for line in _lines(root / "proc/self/cgroup") or ["0::/", f"1:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 mounts a hierarchy under all names of its controllers, such as "cpu,cpuacct". Version 2 has no names.
        for mount in dict.fromkeys((controllers, controller) if controllers else ("", "unified")):
            top = root / "sys/fs/cgroup" / mount
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _cores_of_group(group: Path) -> int:
    """Whole cores of a group's quota: CPU time over period, both in microseconds."""
    version_1 = f"{_first_line(group / 'cpu.cfs_quota_us')} {_first_line(group / 'cpu.cfs_period_us')}"  # quota -1: no limit
    numbers = (_first_line(group / "cpu.max") or version_1).split()  # quota "max": no limit
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers) or int(numbers[1]) == 0:
        return UNLIMITED
    return int(numbers[0]) // int(numbers[1])


def _memory_of_system(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # not Linux: all physical memory


def _memory_left_in_group(group: Path) -> int:
    """Limit minus use. Inactive cached files count as free, because the kernel drops them first."""
    limit = _first_line(group / "memory.max") or _first_line(group / "memory.limit_in_bytes")
    used = _first_line(group / "memory.current") or _first_line(group / "memory.usage_in_bytes")
    if not (limit.isdigit() and used.isdigit()):
        return UNLIMITED
    statistics = dict(line.split(" ", 1) for line in _lines(group / "memory.stat"))
    cached = int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
    return max(0, int(limit) - int(used) + cached)


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    """Lines of a file; empty if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
