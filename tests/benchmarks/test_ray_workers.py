"""The comparison of Ray's actors with worker processes: equal settings, turns, and the ratio."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import ray_workers
from benchmarks.ray_workers import commands, compare, measure

pytest.importorskip("ray", reason="Ray is an optional package (requirements-ray.txt)")

FLAGS = ["--env=Catch-v0", "--network=mlp", "--frames_stacked=1", "--worker_count=3"]


def test_both_kinds_have_the_same_settings() -> None:
    found = commands(FLAGS)
    assert {kind: command[-1] for kind, command in found.items()} == {"cpu": "--worker_kind=cpu", "ray": "--worker_kind=ray"}
    assert found["cpu"][:-1] == found["ray"][:-1]
    assert "--worker_count=3" in found["cpu"]
    assert not [flag for flag in found["cpu"] if flag.endswith("=auto")]


def test_the_ratio_is_that_of_the_medians() -> None:
    result = compare({"cpu": [100.0, 300.0, 200.0], "ray": [180.0, 20.0, 190.0]})
    assert (result["cpu_frames_per_second"], result["ray_frames_per_second"]) == (200.0, 180.0)
    assert result["ratio"] == pytest.approx(0.9)


def test_the_kinds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    class Program:
        def __init__(self, command: list[str]) -> None:
            started.append(command[-1].partition("=")[2])

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def warm_up(self, seconds: float) -> None:
            pass

        def steps_per_second(self, seconds: float, settle: float) -> float:
            return 50.0 if started[-1] == "cpu" else 40.0

    monkeypatch.setattr(ray_workers, "MeasuredProgram", Program)
    result = measure(FLAGS, 2, 1.0)
    assert started == ["cpu", "ray", "cpu", "ray"]
    assert result["ratio"] == pytest.approx(0.8)
    assert result["cpu_rounds"] == [50, 50]
