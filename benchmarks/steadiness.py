"""Tests from a run's metrics whether its memory, processes and speed stay constant for hours.

    python main.py --op_mode=train --environment_max_steps=1000000000 ...    # for two hours or more, then Ctrl-C
    python -m benchmarks.steadiness results/latest --after=20 --picture=docs/steadiness.png

Compares the first and the last tenth of the rows after `--after` minutes, when replays are full. The output is
Markdown. The exit code is 1 if memory grew by 1 % or more, or if frames/s fell by 10 % or more. Speed is meaningful
only on an otherwise idle machine. Memory is that of all processes, with shared pages counted once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from learner.metrics.curve import time_unit
from learner.metrics.writer import read_metrics
from tools.termination import end_with

MEMORY, PROCESSES, SPEED = "hardware/memory_gb", "hardware/processes", "charts/FPS"
QUANTITIES = {MEMORY: "memory of all processes, GB", PROCESSES: "processes", SPEED: "frames/s"}
FEWEST_ROWS = 20
MOST_GROWTH = 0.01  # of memory
MOST_LOSS = 0.1  # of speed: two hours with little other load differed by 4 %


def changes(metrics: Mapping[str, np.ndarray], after: float) -> dict[str, tuple[float, float]]:
    """Return each quantity's medians over the first and the last tenth of the rows after `after` seconds.

    Rows without the quantity are left out. Raises ValueError if too few rows are left.
    """
    found = {}
    if not metrics:
        raise ValueError(f"wanted {FEWEST_ROWS} rows of metrics, got none")
    for name in QUANTITIES:
        values = metrics[name][(metrics["seconds"] >= after) & np.isfinite(metrics[name])]
        if len(values) < FEWEST_ROWS:
            raise ValueError(f"{name}: wanted {FEWEST_ROWS} rows of metrics after {after / 60:g} minutes, got {len(values)}")
        tenth = len(values) // 10
        found[name] = (float(np.median(values[:tenth])), float(np.median(values[-tenth:])))
    return found


def growth(change: tuple[float, float]) -> float:
    """Return the relative growth of a quantity."""
    return change[1] / change[0] - 1


def faults(found: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return one line for each quantity that did not stay constant."""
    grown, lost = growth(found[MEMORY]), -growth(found[SPEED])
    return [
        *([f"memory has grown by {grown:.1%}, wanted less than {MOST_GROWTH:.0%}"] if grown >= MOST_GROWTH else []),
        *([f"frames/s have fallen by {lost:.1%}, wanted less than {MOST_LOSS:.0%}"] if lost >= MOST_LOSS else []),
    ]


def draw(metrics: Mapping[str, np.ndarray], after: float, picture: Path) -> None:
    """Draw memory and speed against wall time, with a vertical line at `after` seconds."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    size, unit = time_unit(metrics["seconds"][-1])
    for axis, name in zip(figure.subplots(1, 2), (MEMORY, SPEED), strict=True):
        known = np.isfinite(metrics[name])
        axis.plot(metrics["seconds"][known] / size, metrics[name][known], linewidth=1.2)
        axis.axvline(after / size, color="#999999", linestyle="--", linewidth=0.8)
        axis.set_ylim(bottom=0)
        axis.set_xlabel(f"wall time, {unit}")
        axis.set_ylabel(QUANTITIES[name])
        axis.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--after", type=float, default=10.0, help="minutes after which nothing should grow")
    parser.add_argument("--picture", type=Path, help="file for a picture (PNG)")
    arguments = parser.parse_args()
    try:
        metrics = read_metrics(arguments.run / "metrics.csv", ("seconds", "steps", *QUANTITIES))
        found = changes(metrics, 60 * arguments.after)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    minutes, steps = metrics["seconds"][-1] / 60, metrics["steps"][-1]
    print(f"{minutes:.0f} minutes, {steps:,.0f} steps; after the first {arguments.after:g} minutes:\n")
    print("| quantity | first tenth | last tenth | change |\n|---|---|---|---|")
    for name, label in QUANTITIES.items():
        first, last = found[name]
        print(f"| {label} | {first:,.4g} | {last:,.4g} | {growth(found[name]):+.2%} |")
    if arguments.picture:
        draw(metrics, 60 * arguments.after, arguments.picture)
    for line in (unsteady := faults(found)):
        print(f"Not steady: {line}", file=sys.stderr)
    return int(bool(unsteady))


if __name__ == "__main__":
    end_with(main)
