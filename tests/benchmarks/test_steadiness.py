"""Growth is seen, and only after everything is full."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import steadiness
from benchmarks.steadiness import MEMORY, PROCESSES, SPEED, changes

MINUTES = 60.0


def write_metrics(run: Path, memory: np.ndarray, speed: np.ndarray | None = None) -> None:
    """A row a minute; memory in GB, NaN where a row does not tell it; speed in frames/s, by default one that rises."""
    speed = 5000 + np.arange(len(memory)) if speed is None else speed
    lines = [f"seconds,steps,{MEMORY},{PROCESSES},{SPEED}"]
    lines += [f"{60 * n},{100 * n},{'' if np.isnan(one) else one},4,{speed[n]}" for n, one in enumerate(memory)]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")


def run_main(run: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["steadiness", str(run), *options])
    return steadiness.main()


def test_growth_before_all_is_full_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_metrics(tmp_path, np.minimum(1.0 + 0.1 * np.arange(120), 2.0))
    assert run_main(tmp_path, monkeypatch, "--after=10", f"--picture={tmp_path / 'out.png'}") == 0
    assert "| memory of all processes, GB | 2 | 2 | +0.00% |" in capsys.readouterr().out
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert run_main(tmp_path, monkeypatch, "--after=0") == 1


def test_a_leak_of_a_hundredth_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metrics(tmp_path, np.linspace(2.0, 2.03, 120))
    assert run_main(tmp_path, monkeypatch) == 1
    write_metrics(tmp_path, np.linspace(2.0, 2.015, 120))
    assert run_main(tmp_path, monkeypatch) == 0


def test_a_speed_that_has_fallen_by_a_tenth_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the first tenth, after all is full, to the last one."""
    steady, before = np.full(120, 2.0), np.full(20, 9000.0)
    write_metrics(tmp_path, steady, np.concatenate([before, np.linspace(7000.0, 6150.0, 100)]))
    assert run_main(tmp_path, monkeypatch, "--after=20") == 1
    assert capsys.readouterr().err == "Not steady: frames/s have fallen by 11.1%, wanted less than 10%\n"
    write_metrics(tmp_path, steady, np.concatenate([before, np.linspace(7000.0, 6400.0, 100)]))
    assert run_main(tmp_path, monkeypatch, "--after=20") == 0
    assert capsys.readouterr().err == ""
    write_metrics(tmp_path, np.linspace(2.0, 2.03, 120), np.linspace(7000.0, 5000.0, 120))
    assert run_main(tmp_path, monkeypatch) == 1
    assert capsys.readouterr().err.count("Not steady: ") == 2


def test_medians_of_tenths_of_the_rows_that_tell() -> None:
    memory = np.concatenate([np.full(50, 9.0), np.full(10, 2.0), np.full(80, 7.0), np.full(10, 3.0)])
    memory[55] = memory[145] = np.nan
    rows = np.arange(150.0)
    metrics = {"seconds": 60 * rows, MEMORY: memory, PROCESSES: np.full(150, 4.0), SPEED: rows}
    assert changes(metrics, 50 * MINUTES)[MEMORY] == (2.0, 3.0)
    assert changes(metrics, 50 * MINUTES)[SPEED] == (54.5, 144.5)


def test_too_short_a_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_metrics(tmp_path, np.ones(25))
    assert run_main(tmp_path, monkeypatch, "--after=10") == 2
    assert capsys.readouterr().err == "error: hardware/memory_gb: wanted 20 rows of metrics after 10 minutes, got 15\n"
    assert run_main(tmp_path / "nowhere", monkeypatch) == 2
