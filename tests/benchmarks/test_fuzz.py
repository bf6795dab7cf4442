"""A few cases of `benchmarks.fuzz`, and the detection of bad ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import fuzz
from benchmarks.fuzz import Row, fuzz_checkpoints, fuzz_files, fuzz_flags
from benchmarks.fuzzed_checkpoints import base_checkpoints, foreign_files, fuzzed_checkpoint
from learner.runs.checkpoint import load_checkpoint


def test_no_command_line_raises_hangs_or_writes(tmp_path: Path) -> None:
    row = fuzz_flags(80, random.Random(3), tmp_path)
    assert row.bad == []
    assert row.cases == 80
    assert row.refused > 40
    assert row.taken > 1


def test_no_checkpoint_raises_hangs_or_runs_code(tmp_path: Path) -> None:
    row = fuzz_checkpoints(50, random.Random(0), tmp_path)
    assert row.bad == []
    assert row.cases == 50
    assert row.refused > 20
    assert row.taken > 3


def test_no_damaged_file_raises_or_is_written_to(tmp_path: Path) -> None:
    row = fuzz_files(60, random.Random(0), tmp_path)
    assert row.bad == []
    assert row.cases == 60
    assert row.refused > 20
    assert row.taken > 5


def test_every_foreign_file_is_refused(tmp_path: Path) -> None:
    files = foreign_files(random.Random(1), base_checkpoints(tmp_path))
    assert len(files) > 10
    for name, content in files.items():
        (tmp_path / name).write_bytes(content())
        with pytest.raises(ValueError, match="wanted") as refused:
            load_checkpoint(tmp_path / name)
        assert len(str(refused.value).splitlines()) == 1, name


def test_the_same_seed_gives_the_same_cases(tmp_path: Path) -> None:
    bases = base_checkpoints(tmp_path)
    runs = []
    for _ in range(2):
        generator = random.Random(5)
        runs.append(
            [(fuzzed_checkpoint(generator, bases, tmp_path / "x.pt"), (tmp_path / "x.pt").read_bytes()) for _ in range(20)]
        )
    assert runs[0] == runs[1]


def raise_value_error(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise ValueError(text)

    return fail


@pytest.mark.parametrize(
    ("action", "bad"),
    [
        (raise_value_error("one line"), 0),
        (raise_value_error(""), 1),
        (raise_value_error(" \n"), 1),
        (lambda: {}["missing"], 1),
        (lambda: [][1], 1),
        (lambda: torch.zeros(2) @ torch.zeros(3), 1),
        (lambda: None, 0),
    ],
)
def test_a_bad_case_is_noticed(action: Callable[[], object], bad: int) -> None:
    row = Row("test")
    row.try_case("case", action)
    assert len(row.bad) == bad
    assert row.cases == 1


def test_a_file_written_before_the_start_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fuzz.prepare", lambda command: command)
    monkeypatch.setattr("learner.launch.measured", lambda command: Path("written").touch())
    assert "it wrote ['written']" in fuzz_flags(3, random.Random(0), tmp_path).bad[0]


def spin() -> None:
    end = time.process_time() + 30
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("limit", "action", "said"),
    [
        ("CASE_SECONDS", spin, "wanted an end within 1 seconds of CPU time"),
        ("HANG_SECONDS", lambda: time.sleep(30), "wanted an end within 1 seconds"),
    ],
)
def test_a_case_that_computes_or_waits_too_long_is_bad(
    limit: str, action: Callable[[], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, limit, 1)
    row, started = Row("x"), time.monotonic()
    row.try_case("too long", action)
    assert time.monotonic() - started < 25
    assert len(row.bad) == 1
    assert f"TimeLimitError: {said}\n" in row.bad[0]


def test_a_case_that_waits_for_a_busy_machine_is_not_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "CASE_SECONDS", 1)
    row = Row("x")
    row.try_case("waits", lambda: time.sleep(1.5))
    assert (row.taken, row.bad) == (1, [])
