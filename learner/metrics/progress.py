"""The progress line: one live line in a terminal, nothing if the output is not a terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import TextIO

from learner.console import standard_error


def format_duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_count(count: int) -> str:
    """`12,345`, or `1.23M` from 100,000 on."""
    return f"{count:,}" if count < 100_000 else f"{count / 1e6:.2f}M"


def steps_and_frames(steps: int, frames: int) -> str:
    """`1,000 steps = 4,000 frames`, or `1,000 steps` where a step is one frame."""
    return f"{steps:,} steps" + ("" if frames == steps else f" = {frames:,} frames")


def short_id(env: str) -> str:
    """The name in an environment's id: `Pong` of `PongNoFrameskip-v4`, `ALE/Pong-v5` and `package:Pong-v0`."""
    return re.sub(r"(NoFrameskip)?-v\d+$", "", re.split("[:/]", env)[-1])


def progress_text(
    *,
    mean_return: float | None,
    steps: int,
    max_steps: int,
    frames: int,
    frames_per_second: float,
    left: float,
    evaluated: bool = False,
    tasks: Mapping[str, float] | None = None,
) -> str:
    """One line that fits most terminals. Frames are left out where a step is one frame.

    Args:
        mean_return: of the last episodes, None before the first.
        steps: agent steps so far.
        max_steps: agent steps of the budget.
        frames: emulator frames so far.
        frames_per_second: current speed.
        left: seconds until the budget is used.
        tasks: mean return of each environment, if there are several.
        evaluated: whether the mean return is that of an evaluation, because the run itself plays no episodes.
    """
    source, missing = ("evaluation", "no evaluation yet") if evaluated else ("return", "no episode yet")
    shown = missing if mean_return is None else f"{source} {mean_return:.2f}"
    if tasks:
        shown += f" ({', '.join(f'{short_id(task)} {mean:.2f}' for task, mean in tasks.items())})"
    counted, unit = ("", "steps") if frames == steps else (f"frames {format_count(frames)} | ", "frames")
    return (
        f"{shown} | steps {format_count(steps)} of {format_count(max_steps)} | {counted}"
        f"{frames_per_second:,.0f} {unit}/s | left {format_duration(left)}"
    )


class ProgressLine:
    """Rewrites one line of a terminal in place. It falls silent if the terminal is closed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or standard_error()
        self.live = self._stream.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if self.live:
            # One column stays free, because some terminals wrap a line that fills the last one.
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[2K{text[:width]}")
            self._shown = True

    def clear(self) -> None:
        """Erase the line, so that something else can be printed."""
        if self._shown:
            self._write("\r\x1b[2K")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal was closed
            self.live = False
