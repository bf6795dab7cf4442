"""A served training survives the kill of a client, of its server and of the trainer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.serve_kills import kill_one_after_another


def test_each_kind_of_kill_is_survived(tmp_path: Path) -> None:
    assert kill_one_after_another(3, 1, tmp_path) == 3
