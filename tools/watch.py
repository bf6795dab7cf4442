"""Shows a run in the terminal: one screen from its metrics.csv, refreshed while it trains.

    python -m tools.watch results/latest
    python -m tools.watch results/latest --once

It needs a shell on the machine and no browser, and also shows finished runs. The bottleneck is the newest one in the
run's log.txt. The log has one for each row of metrics over five seconds or more, except the first row, and one for the
whole run at its end. Ctrl-C ends the program.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import shutil
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

from learner.metrics.progress import format_count, format_duration
from learner.metrics.writer import MetricsWriter, read_metrics
from learner.runs.directory import RunDirectory
from tools.summary import read_config, read_summary

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"
CLEAR = "\x1b[H\x1b[2J"
LABEL = 12
SHARES = ("learner", "worker", "feeder")
BEGUN, LIMITED = " INFO Training on ", " Limited by "  # the beginnings of lines in log.txt, after their time
TAIL_BYTES = 1 << 16
"""End of the log that is read: hundreds of rows. All of it would be megabytes in a long run, again and again."""
Columns = dict[str, np.ndarray]


def screen(
    columns: Columns,
    max_steps: int,
    name: str,
    width: int,
    end: str | None = None,
    bottleneck: str = "",
    blocks: str = BLOCKS,
) -> list[str]:
    """Return the lines of the screen.

    Args:
        columns: of metrics.csv, with at least one row.
        max_steps: step budget of the run.
        name: first line of the screen.
        width: most characters in a line.
        end: how the run has ended, None if it may still run.
        bottleneck: what limits the run, empty if that is not known.
        blocks: characters of a sparkline in ascending height.
    """
    steps, frames, seconds = (int(columns[key][-1]) for key in ("steps", "frames", "seconds"))
    fps = latest(columns, "charts/FPS")
    speed = latest(columns, "charts/SPS")
    left = (max_steps - steps) / speed if speed > 0 else 0.0
    done = min(1.0, steps / max_steps) if max_steps > 0 else 1.0
    bar = "#" * round(20 * done)
    lines = [
        name,
        f"{'progress':{LABEL}}[{bar:<20}] {100 * done:.0f} %",
        f"{'steps':{LABEL}}{format_count(steps)} of {format_count(max_steps)}   frames {format_count(frames)}   "
        f"updates {int(columns['updates'][-1]):,}   episodes {int(columns['episodes'][-1]):,}",
        f"{'time':{LABEL}}{format_duration(seconds)}   {end or f'left {format_duration(max(0.0, left))}'}",
        f"{'speed':{LABEL}}{fps:,.0f} frames/s   {latest(columns, 'charts/updates_per_second'):.2f} updates/s",
        *textwrap.wrap(bottleneck, width, initial_indent=f"{'limit':{LABEL}}", subsequent_indent=" " * LABEL),
        "",
    ]
    for label, column in (("return", "charts/episodic_return_mean"), ("evaluation", "eval/episodic_return")):
        known = known_values(columns, column)
        if len(known):
            lines.append(f"{label:{LABEL}}{sparkline(known, width - LABEL - 34, blocks)} {span(known)}")
    lines.append("")
    lines += group("losses", columns, "losses/", width)
    lines += group("policy lag", columns, "charts/policy_lag", width)
    for owner in SHARES:
        lines += group(f"{owner} %", columns, f"time/{owner}_", width, scale=100.0)
    lines += group("hardware", columns, "hardware/", width)
    return [line[:width] for line in lines]


def known_values(columns: Columns, name: str) -> np.ndarray:
    """Return a column without its empty cells."""
    values = columns.get(name, np.empty(0))
    return values[np.isfinite(values)]


def latest(columns: Columns, name: str) -> float:
    """Return the last number in a column, NaN if there is none."""
    known = known_values(columns, name)
    return float(known[-1]) if len(known) else math.nan


def span(values: np.ndarray) -> str:
    return f"{values[-1]:,.2f} (from {values.min():,.2f} to {values.max():,.2f})"


def sparkline(values: np.ndarray, width: int, blocks: str = BLOCKS) -> str:
    """Return at most `width` characters. The height of each shows the mean of its part of the values between the extremes."""
    parts = np.array_split(values, max(1, min(width, len(values))))
    means = np.array([part.mean() for part in parts])
    low, high = means.min(), means.max()
    heights = (means - low) / (high - low) if high > low else np.zeros_like(means)
    return "".join(blocks[int(height * (len(blocks) - 1) + 0.5)] for height in heights)


def group(label: str, columns: Columns, prefix: str, width: int, scale: float = 1.0) -> list[str]:
    """Return lines with the last numbers of all columns that begin with `prefix`, [] if there are none."""
    cells = []
    for name in columns:
        if name.startswith(prefix) and math.isfinite(value := latest(columns, name)):
            cells.append(f"{name.removeprefix(prefix)} {scale * value:.4g}".strip())
    lines: list[str] = []
    for cell in cells:
        if lines and len(lines[-1]) + 3 + len(cell) <= width:
            lines[-1] += f"   {cell}"
        else:
            lines.append(f"{'' if lines else label:{LABEL}}{cell}")
    return lines


def read_run(run: RunDirectory) -> tuple[Columns, int]:
    """Return metrics and step budget of a run. Raises ValueError in one line if there is nothing to show yet."""
    try:
        max_steps = read_config(run, {"environment_max_steps": int})["settings"]["environment_max_steps"]
        columns = read_metrics(run.metrics, MetricsWriter.LEADING)
    except FileNotFoundError as error:
        raise ValueError(
            f"wanted a run directory with metrics, got {str(run.path)!r} (no {Path(error.filename).name})"
        ) from None
    except OSError as error:
        raise ValueError(f"{run.path}: cannot be read now ({error})") from None
    if not columns or not all(np.isfinite(columns[name][-1:]).sum() for name in MetricsWriter.LEADING):  # one is being written
        raise ValueError(f"{run.metrics}: wanted a row of metrics, got none yet")
    return columns, max_steps


def end_of(run: RunDirectory) -> str | None:
    """Return how the newest command of a run has ended, None if it may still run."""
    summary = read_summary(run)
    return ("finished" if summary["finished"] else "stopped") if summary else None


def newest_bottleneck(log: Path) -> str:
    """Return the newest bottleneck in a run's log, empty if the newest command has logged none yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.rpartition(BEGUN)[2].splitlines()
    return next((line.partition(LIMITED)[2] for line in reversed(lines) if LIMITED in line), "")


def prepare_output() -> str:
    """Let standard output replace what its encoding lacks. Returns the blocks of a sparkline that it can show."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII_BLOCKS
    return BLOCKS


def positive_seconds(text: str) -> float:
    """A finite number of seconds above 0. Raises argparse.ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"wanted a finite number of seconds > 0, got {text!r}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory, such as results/latest")
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.add_argument("--period", type=positive_seconds, default=2.0, help="seconds between two screens")
    options = parser.parse_args(arguments)
    run = RunDirectory(options.run.resolve())
    if not run.config.is_file():
        print(f"error: run: wanted a run directory, got {str(options.run)!r}", file=sys.stderr)
        return 2
    blocks = prepare_output()
    while True:
        width = shutil.get_terminal_size().columns
        try:
            columns, max_steps = read_run(run)
            bottleneck = newest_bottleneck(run.log)
            text = "\n".join(screen(columns, max_steps, run.path.name, width, end_of(run), bottleneck, blocks))
        except ValueError as error:
            text = str(error)
        print(text if options.once else CLEAR + text, flush=True)
        if options.once:
            return 0
        time.sleep(options.period)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(0)
