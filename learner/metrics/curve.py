"""The learning-curve picture of one run, drawn from its metrics.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from learner.metrics.writer import read_metrics


def draw_learning_curve(metrics: Path, picture: Path, title: str) -> bool:
    """Draw the return against frames and against wall time, as PNG. Returns False, and draws nothing, before the first episode.

    Returns of evaluations are drawn where training itself plays no episodes.

    Args:
        metrics: path of metrics.csv.
        picture: path of the picture, which is replaced when the new one is complete.
        title: of the picture.
    """
    columns = read_metrics(metrics)
    lines = [("charts/episodic_return_mean", "mean of the last episodes"), ("eval/episodic_return", "evaluations")]
    drawn = [(columns[name], label) for name, label in lines if name in columns and np.isfinite(columns[name]).any()]
    if not drawn:
        return False
    mean, label_of_mean = drawn[0]
    # Not pyplot, which keeps every figure in global state and may look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name, label, (size, unit) in (
        (axes[0], "frames", _label(columns["steps"], columns["frames"]), frames_unit(columns["frames"][-1])),
        (axes[1], "seconds", "wall time", time_unit(columns["seconds"][-1])),
    ):
        x = columns[name] / size
        if "charts/episodic_return" in columns:
            axis.plot(x, columns["charts/episodic_return"], ".", markersize=3, alpha=0.35, label="episodes of one interval")
        known = np.isfinite(mean)
        axis.plot(x[known], mean[known], label=label_of_mean)
        axis.set_xlabel(f"{label}, {unit}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("episodic return (raw)")
    axes[0].legend(loc="best")
    new_file = picture.with_suffix(".new.png")
    figure.savefig(new_file, dpi=110)
    new_file.replace(picture)
    return True


def _label(steps: np.ndarray, frames: np.ndarray) -> str:
    return "steps" if np.array_equal(steps, frames) else "emulator frames"


def frames_unit(most: float) -> tuple[float, str]:
    """The unit for up to `most` frames, in frames, and its name."""
    return (1e6, "millions") if most >= 1e6 else (1e3, "thousands")


def time_unit(longest: float) -> tuple[float, str]:
    """The unit for up to `longest` seconds, in seconds, and its name."""
    if longest < 120:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")
