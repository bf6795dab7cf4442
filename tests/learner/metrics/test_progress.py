"""The progress line shows how far the run is, and only in a terminal."""

from __future__ import annotations

import io
import os

import pytest

from learner.metrics import progress as module
from learner.metrics.progress import ProgressLine, format_count, format_duration, progress_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> str:
        """The content of the line after everything that was written."""
        return self.getvalue().rsplit("\x1b[2K", 1)[-1]


@pytest.fixture(autouse=True)
def _forty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((40, 20)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.9, "0:59"),
        (60, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (3723.4, "1:02:03"),
        (360_000, "100:00:00"),
    ],
)
def test_durations_read_as_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_the_line_has_steps_and_frames() -> None:
    text = progress_text(
        mean_return=-20.333,
        steps=250_000,
        max_steps=1_000_000,
        frames=1_000_000,
        frames_per_second=4321.6,
        left=3723,
    )
    assert text == "return -20.33 | steps 0.25M of 1.00M | frames 1.00M | 4,322 frames/s | left 1:02:03"


def test_the_line_stays_short_in_a_long_run() -> None:
    text = progress_text(
        mean_return=-20.33,
        steps=47_250_000,
        max_steps=50_000_000,
        frames=189_000_000,
        frames_per_second=9876.5,
        left=3600,
    )
    assert len(text) <= 90


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (99_999, "99,999"), (100_000, "0.10M"), (12_345_678, "12.35M")])
def test_large_counts_are_short(count: int, text: str) -> None:
    assert format_count(count) == text


def test_a_return_is_shown_only_after_an_episode() -> None:
    tasks = {"PongNoFrameskip-v4": 18.0, "package:My/Game-v12": -1.5}
    text = progress_text(mean_return=8.25, steps=0, max_steps=10, frames=0, frames_per_second=0.0, left=0.0, tasks=tasks)
    assert text.startswith("return 8.25 (Pong 18.00, Game -1.50) | ")
    text = progress_text(mean_return=None, steps=0, max_steps=10, frames=0, frames_per_second=0.0, left=0.0)
    assert text.startswith("no episode yet | steps 0 of 10")


def test_a_terminal_shows_one_line_rewritten_in_place() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.show("first text")
    line.show("second")
    assert terminal.screen() == "second"
    assert terminal.getvalue().count("\r") == 2
    assert "\n" not in terminal.getvalue()


def test_a_long_line_does_not_wrap() -> None:
    terminal = Terminal()
    ProgressLine(terminal).show("x" * 500)
    assert terminal.screen() == "x" * 39


def test_clearing_leaves_an_empty_line_once() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.clear()
    assert terminal.getvalue() == ""
    line.show("text")
    line.clear()
    assert terminal.screen() == ""
    written = len(terminal.getvalue())
    line.clear()
    assert len(terminal.getvalue()) == written


def test_a_file_gets_no_progress_line() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.show("text")
    line.clear()
    assert stream.getvalue() == ""
