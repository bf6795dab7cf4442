"""The memory that is left: of the machine, or of the container with its own limit."""

from __future__ import annotations

import math
from pathlib import Path

from serve.memory import free_memory


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == math.inf
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemFree:   10 kB\nMemAvailable:   4000 kB\n")
    assert free_memory(tmp_path) == 4000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in (("max", "1000000\n"), ("current", "700000\n"), ("stat", "anon 5\ninactive_file 100000\n")):
        (group / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 400_000
    (group / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) == 4000 * 1024
