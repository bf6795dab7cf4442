"""The learning-curve picture of one run, drawn from its metrics.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from learner.metrics import read_metrics


def draw_learning_curve(metrics: Path, picture: Path, title: str) -> bool:
    """Return against frames and against wall time, as PNG. False where no episode has ended yet, and nothing is drawn."""
    columns = read_metrics(metrics)
    mean = columns.get("charts/episodic_return_mean")
    if mean is None or not np.isfinite(mean).any():
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, x, label in (
        (axes[0], columns["frames"] / 1e6, "emulator frames, millions"),
        (axes[1], columns["seconds"] / 60, "wall time, minutes"),
    ):
        if "charts/episodic_return" in columns:
            axis.plot(x, columns["charts/episodic_return"], ".", markersize=3, alpha=0.35, label="episodes of one interval")
        known = np.isfinite(mean)
        axis.plot(x[known], mean[known], label="mean of the last episodes")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("episodic return (raw)")
    axes[0].legend(loc="best")
    beside = picture.with_suffix(".new.png")
    figure.savefig(beside, dpi=110)
    beside.replace(picture)
    return True
