"""Cores and memory of the machine, within the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.machine import detect as module
from learner.machine.detect import detect_machine


def test_this_machine_is_detected() -> None:
    machine = detect_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 10**8


MEMINFO = "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 4000 kB\n"


def machine_files(root: Path, group: str, files: dict[str, str]) -> Path:
    """A file system with MemAvailable 4000 KiB, this process in `group`, and these files below /sys/fs/cgroup."""
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": group}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "files", "wanted"),
    [
        ("0::/", {}, 4000 * 1024),
        ("0::/", {"memory.max": "max\n", "memory.current": "5\n"}, 4000 * 1024),
        ("0::/", {"memory.max": "9000\n", "memory.current": "2000\n"}, 7000),
        ("0::/", {"memory.max": "9000\n", "memory.current": "9500\n"}, 0),
        ("0::/", {"memory.max": "9000", "memory.current": "2000", "memory.stat": "anon 1500\ninactive_file 400\n"}, 7400),
        ("0::/", {"memory.max": "9" * 18, "memory.current": "2000"}, 4000 * 1024),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "9000", "a/memory.current": "1000"}, 8000),
        ("0::/a/b", {"a/b/memory.max": "600", "a/b/memory.current": "1", "a/memory.max": "9", "a/memory.current": "1"}, 8),
        ("0::/elsewhere", {"memory.max": "9000", "memory.current": "2000"}, 7000),
        (
            "4:memory:/docker/x\n1:cpu:/y\n0::/\n",
            {"memory/memory.limit_in_bytes": "9000\n", "memory/memory.usage_in_bytes": "2500\n"},
            6500,
        ),
        (
            "4:memory:/x\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": "2500",
                "memory/x/memory.limit_in_bytes": "5000",
                "memory/x/memory.usage_in_bytes": "4000",
                "memory/x/memory.stat": "inactive_file 9\ntotal_inactive_file 300\n",
            },
            1300,
        ),
    ],
)
def test_available_memory_and_the_limits_of_control_groups_count(
    group: str, files: dict[str, str], wanted: int, tmp_path: Path
) -> None:
    assert module.available_memory(machine_files(tmp_path, group, files)) == wanted


def test_a_system_without_these_files_has_its_physical_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert module.available_memory(tmp_path) == 4096 * 1000
    assert module._first_line(tmp_path / "cpu.max") == ""


V1 = "4:cpu,cpuacct:/a/b\n0::/\n"
V2 = "0::/a/b\n"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, 6),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 6),
        ("0::/\n", {"cpu.max": ""}, 6),
        ("0::/\n", {}, 6),
        ("", {"cpu.max": "300000 100000"}, 3),
        (V2, {"a/b/cpu.max": "300000 100000"}, 3),
        (V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        (V2, {"a/b/cpu.max": "200000 100000", "a/cpu.max": "400000 100000", "cpu.max": "max 100000"}, 2),
        (V1, {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "200000", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 2),
        (V1, {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "50000"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ("3:cpuset:/a\n1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "500000", "cpu/cpu.cfs_period_us": "100000"}, 5),
        ("3:cpuset:/a\n0::/a\n", {"unified/a/cpu.max": "400000 100000"}, 4),
    ],
)
def test_the_smallest_quota_of_a_group_and_those_above_it_counts(
    group: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert module.available_cores(machine_files(tmp_path, group, files)) == cores
