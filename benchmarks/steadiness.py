"""Whether a long run stays as it was: its memory, processes and speed over time, from its metrics.

    python main.py --op_mode=train --environment_max_steps=1000000000 ...    # two hours or more, then Ctrl-C
    python -m benchmarks.steadiness results/latest --after=20 --picture=docs/steadiness.png

Compares the first and the last tenth of what comes `--after` so many minutes, when replays are full. Prints Markdown. Exits
with 1 where memory has grown by a hundredth or more, or where frames/s have fallen by a tenth or more; that says something only
where nothing else ran beside. Memory is that of all processes, what they share counted once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.termination import end_with
from learner.metrics.curve import time_unit
from learner.metrics.writer import read_metrics

MEMORY, PROCESSES, SPEED = "hardware/memory_gb", "hardware/processes", "charts/FPS"
QUANTITIES = {MEMORY: "memory of all processes, GB", PROCESSES: "processes", SPEED: "frames/s"}
FEWEST_ROWS = 20
MOST_GROWTH = 0.01  # of memory
MOST_LOSS = 0.1  # of speed: with little beside, two hours differed by 4 %


def changes(metrics: Mapping[str, np.ndarray], after: float) -> dict[str, tuple[float, float]]:
    """Of each quantity the medians over the first and the last tenth of the rows later than `after` seconds. Rows in which a
    quantity is not told are left out. Raises ValueError."""
    found = {}
    for name in QUANTITIES:
        values = metrics[name][(metrics["seconds"] >= after) & np.isfinite(metrics[name])]
        if len(values) < FEWEST_ROWS:
            raise ValueError(f"{name}: wanted {FEWEST_ROWS} rows of metrics after {after / 60:g} minutes, got {len(values)}")
        tenth = len(values) // 10
        found[name] = (float(np.median(values[:tenth])), float(np.median(values[-tenth:])))
    return found


def growth(change: tuple[float, float]) -> float:
    """The part by which a quantity has grown."""
    return change[1] / change[0] - 1


def faults(found: Mapping[str, tuple[float, float]]) -> list[str]:
    """What did not stay as it was, a line each."""
    grown, lost = growth(found[MEMORY]), -growth(found[SPEED])
    return [
        *([f"memory has grown by {grown:.1%}, wanted less than {MOST_GROWTH:.0%}"] if grown >= MOST_GROWTH else []),
        *([f"frames/s have fallen by {lost:.1%}, wanted less than {MOST_LOSS:.0%}"] if lost >= MOST_LOSS else []),
    ]


def draw(metrics: Mapping[str, np.ndarray], after: float, picture: Path) -> None:
    """Memory and speed against wall time; a line where `after` seconds are over."""
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
    parser.add_argument("--after", type=float, default=10.0, help="minutes after which nothing should grow any more")
    parser.add_argument("--picture", type=Path, help="PNG to draw")
    arguments = parser.parse_args()
    try:
        metrics = read_metrics(arguments.run / "metrics.csv")
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
    for line in (told := faults(found)):
        print(f"Not steady: {line}", file=sys.stderr)
    return int(bool(told))


if __name__ == "__main__":
    end_with(main)
