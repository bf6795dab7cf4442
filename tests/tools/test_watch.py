"""The screen that shows the progress of a run from its metrics so far."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner.metrics.writer import MetricsWriter
from learner.runs.directory import RunDirectory
from tests.support import REPOSITORY
from tools.watch import ASCII_BLOCKS, BLOCKS, group, main, newest_bottleneck, read_run, screen, sparkline


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "Catch-v0")
    run.write_config({"environment_max_steps": 4000}, ["main.py"], [])
    return run


def write(run: RunDirectory, *returns: float) -> None:
    writer = MetricsWriter(run)
    for row, value in enumerate(returns, start=1):
        counters = {"seconds": 100.0 * row, "steps": 1000 * row, "frames": 4000 * row, "updates": 10 * row, "episodes": row}
        metrics = {"charts/episodic_return_mean": value, "charts/FPS": 40.0, "charts/SPS": 10.0}
        if row == 1:
            metrics |= {"eval/episodic_return": -7.5, "losses/policy_loss": 0.25}
        writer.write(counters, metrics | {"losses/entropy": 0.5, "time/learner_update": 0.625, "hardware/cpu_percent": 97.0})
    writer.close()


def test_the_screen_shows_progress_and_returns(run: RunDirectory) -> None:
    write(run, -20.0, 3.0)
    lines = screen(*read_run(run), "the run", 100)
    text = "\n".join(lines)
    assert lines[0] == "the run"
    assert "[##########          ] 50 %" in text
    assert "2,000 of 4,000" in text
    assert "frames 8,000" in text
    assert "3:20   left 3:20" in text  # 2,000 steps at 10 a second
    assert "3.00 (from -20.00 to 3.00)" in text
    assert "-7.50" in text, "the newest evaluation, also if later rows have none"
    assert "entropy 0.5" in text
    assert "policy_loss 0.25" in text, "the newest number of a column"
    assert "update 62.5" in text
    assert "cpu_percent 97" in text
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"steps": 2000, "finished": True, "budget": 2000}, "3:20   finished"),
        ({"steps": 2000, "finished": True}, "3:20   left 3:20"),
        ({"steps": 2000, "finished": False}, "3:20   stopped"),
        ({"steps": 1000, "finished": False}, "3:20   left 3:20"),
        ({"steps": 3000, "finished": True}, "3:20   left 3:20"),
        ([], "3:20   left 3:20"),
    ],
)
def test_a_run_that_has_ended_has_no_time_left(
    summary: object, said: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A summary of other steps, or of less than the budget, is that of an earlier command."""
    write(run, -20.0, 3.0)
    if isinstance(summary, dict) and "budget" in summary:
        run.write_config({"environment_max_steps": summary["budget"]}, ["main.py"], [])
    run.summary.write_text(json.dumps(summary))
    assert main([str(run.path), "--once"]) == 0
    assert said in capsys.readouterr().out


def write_log(run: RunDirectory, *lines: str) -> None:
    run.log.write_text("".join(f"2026-01-02 03:04:05,678 {line}\n" for line in lines))


def test_the_newest_bottleneck_is_shown(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write(run, 1.0)
    assert main([str(run.path), "--once"]) == 0
    assert "limit" not in capsys.readouterr().out, "it has no log"
    ways = "workers step 71 %, act 25 % and wait 2 % of their time; more --worker_count helps (5.1 of 8 cores are idle)"
    older, newer = "DEBUG Limited by the learner: it works", f"DEBUG Limited by stepping: {ways}"
    write_log(run, "INFO Training on Catch-v0", older, newer, "DEBUG 2,000 steps", "INFO Checkpoint: nowhere")
    assert main([str(run.path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("limit"))
    (rest,) = (number for number, line in enumerate(lines[first:], first) if line.endswith("idle)"))
    assert " ".join(" ".join(lines[first : rest + 1]).split()) == f"limit stepping: {ways}"
    assert rest > first
    assert all(line.startswith(" " * 12) and len(line) <= 80 for line in lines[first + 1 : rest + 1])


def test_a_bottleneck_of_an_earlier_command_is_not_shown(run: RunDirectory) -> None:
    write_log(run, "INFO Training on Catch-v0", "INFO Limited by the learner: it works", "INFO Training on Catch-v0")
    assert newest_bottleneck(run.log) == ""


def test_only_the_end_of_a_long_log_is_read(run: RunDirectory) -> None:
    write_log(run, "DEBUG Limited by acting: \N{MULTIPLICATION SIGN}", *["DEBUG 2,000 steps"] * 1000)
    assert newest_bottleneck(run.log) == "acting: \N{MULTIPLICATION SIGN}"
    write_log(run, "DEBUG Limited by acting: long ago", *["DEBUG 2,000 steps"] * 5000)
    assert newest_bottleneck(run.log) == ""


def test_it_fits_a_narrow_terminal(run: RunDirectory) -> None:
    write(run, 1.0)
    for width in (10, 40):
        lines = screen(*read_run(run), "x" * 200, width, bottleneck="acting: " + 30 * "word ")
        assert max(map(len, lines)) <= width


def test_a_sparkline_rises_with_the_values() -> None:
    assert sparkline(np.arange(8.0), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.array([5.0, 5.0]), 8) == "▁▁"
    assert sparkline(np.repeat([0.0, 1.0], 500), 4) == "▁▁██"
    assert len(sparkline(np.arange(10.0), -3)) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_it_writes_characters_of_the_terminals_encoding(encoding: str, run: RunDirectory) -> None:
    write(run, *map(float, range(9)))
    write_log(run, "DEBUG Limited by acting: \N{MULTIPLICATION SIGN} \N{HIRAGANA LETTER A}")
    command = [sys.executable, "-m", "tools.watch", str(run.path), "--once"]
    environment = {**os.environ, "LANG": "C", "COLUMNS": "80", "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, timeout=60, check=True)
    (line,) = (line for line in done.stdout.decode(encoding).splitlines() if line.startswith("return"))
    curve = line.split()[1]
    assert len(curve) == 9
    assert [*curve] == sorted(curve, key=(BLOCKS if encoding == "utf-8" else ASCII_BLOCKS).index)


def test_many_numbers_are_wrapped_and_empty_columns_left_out() -> None:
    columns = {f"a/{letter}": np.array([1.0]) for letter in "bcdefgh"} | {"a/unknown": np.array([np.nan])}
    lines = group("label", columns, "a/", 30)
    assert len(lines) > 1
    assert max(map(len, lines)) <= 30
    assert [line.startswith("label") for line in lines] == [True] + [False] * (len(lines) - 1)
    assert "unknown" not in "".join(lines)
    assert group("label", columns, "nothing/", 30) == []


def test_a_run_without_a_whole_row_yet_is_no_error(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path), "--once"]) == 0
    assert "no metrics.csv" in capsys.readouterr().out
    write(run, 1.0)
    with run.metrics.open("a") as file:
        file.write("123,4")
    assert main([str(run.path), "--once"]) == 0


def test_a_path_that_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("error: run: wanted a run directory, got")


@pytest.mark.parametrize("period", ["-1", "0", "nan", "soon"])
def test_a_period_that_is_none_is_one_line(run: RunDirectory, period: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(run.path), f"--period={period}"])
    assert ended.value.code == 2
    assert f"wanted a finite number of seconds > 0, got '{period}'" in capsys.readouterr().err
