"""The pictures of a report: curves and scores, with intervals over seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from learner.metrics.curve import frames_unit, time_unit
from tools.aggregates import Estimate, mean_curve, on_grid
from tools.comparison import Game, Overall, Result
from tools.runs import LoadedRun

# Okabe and Ito's colours, which all kinds of colour vision distinguish. Their yellow is left out: it is too light on white.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
DASHES = ("-", "--", ":")
POINTS = 300
MOST_TICKS = 5  # with more ticks, long numbers touch each other
LINE_INCHES = 0.2  # height of a line of text
LEGEND_WIDTH = 130  # characters of a legend that is as wide as the picture
MOST_COLUMNS, NARROW = 3, 38  # columns of the legend, and the characters of a name that fits in one of them
LABEL_WIDTH = 36  # characters of a setting's name left of its score


def draw_curves(game: Game, picture: Path, threshold: float | None) -> None:
    """Draw return against frames and against wall time as a PNG, with a legend below both.

    By time, a run that has ended keeps its last value until all runs have ended.
    """
    names = [textwrap.fill(_named(result, game), LEGEND_WIDTH) for result in game.results]
    columns = MOST_COLUMNS if max(map(len, names)) <= NARROW else 1
    lines = sum(name.count("\n") + 1 for name in names) / columns
    figure = new_figure(11, 4.4 + LINE_INCHES * math.ceil(lines))
    by_frames, by_time = figure.subplots(1, 2, sharey=True)
    many, unit = frames_unit(game.horizon)
    _draw_side(by_frames, game, lambda run: run.frames / many, game.horizon / many, f"{game.unit}, {unit}")
    longest = 60 * max(result.minutes.max() for result in game.results)
    scale, unit = time_unit(longest)
    _draw_side(by_time, game, lambda run: run.seconds / scale, longest / scale, f"wall time, {unit}")
    by_frames.set_ylabel("return (raw, mean of the last training episodes)")
    figure.suptitle(f"{game.env}: mean over seeds and its 95 % interval", x=0.01, ha="left", fontweight="bold")
    figure.legend(by_time.get_lines(), names, loc="outside lower left", ncols=columns, frameon=False)
    for axis in (by_frames, by_time):
        if threshold is not None:
            axis.axhline(threshold, color="#999999", linewidth=0.8, linestyle=(0, (4, 4)))
    figure.savefig(picture, dpi=110)


def _draw_side(axis: Axes, game: Game, x_of: Callable[[LoadedRun], np.ndarray], right: float, label: str) -> None:
    """Draw every setting's curve against `x_of` its runs, from 0 to `right`."""
    for number, result in enumerate(game.results):
        until = max(np.interp(game.horizon, run.frames, x_of(run)) for run in result.runs)
        grid = np.linspace(0, until, POINTS)
        draw_mean(axis, number, grid, np.stack([_up_to_horizon(game, run, x_of(run), grid) for run in result.runs]))
    axis.set_xlim(0, right)
    axis.set_xlabel(label)
    tidy(axis)


def draw_mean(axis: Axes, number: int, x: np.ndarray, curves: np.ndarray, label: str = "") -> None:
    """Draw the mean of curves over seeds as a line and its interval as a band.

    Args:
        axis: drawn on.
        number: of the setting, which decides the colour.
        x: `[points]`.
        curves: `[seeds, points]`; NaN where a seed has no value.
        label: name of the line in a legend.
    """
    colour, dashes = style(number)
    centre, low, high = mean_curve(curves)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(x, centre, color=colour, linestyle=dashes, linewidth=1.6, label=label)


def _up_to_horizon(game: Game, run: LoadedRun, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The run's curve on `grid`: NaN before it begins, constant after the frames at which all runs are compared."""
    before = run.frames < game.horizon
    ends = [np.interp(game.horizon, run.frames, values) for values in (x, run.returns)]
    return on_grid(np.append(x[before], ends[0]), np.append(run.returns[before], ends[1]), grid)


def draw_scores(game: Game, picture: Path) -> None:
    """Draw every run's score as a dot, and the mean over seeds with its interval as a line."""
    rows = [(_named(result, game), result.score(), result.scores) for result in game.results]
    _draw_intervals(rows, picture, f"{game.env} at {game.horizon:,.0f} frames", "return (raw); a dot is one seed")


def draw_overall(overall: Sequence[Overall], picture: Path) -> None:
    """Draw the interquartile mean over games and seeds with its interval."""
    rows = [(each.setting, each.interquartile_mean, np.zeros(0)) for each in overall]
    label = "interquartile mean of human-normalised scores, per cent"
    _draw_intervals(rows, picture, f"{overall[0].games} games", label)


def _draw_intervals(rows: Sequence[tuple[str, Estimate, np.ndarray]], picture: Path, title: str, label: str) -> None:
    """Draw a row for each name, with its estimate and its dots `[dots]`."""
    names = [textwrap.fill(name, LABEL_WIDTH) for name, _, _ in rows]
    lines = max(name.count("\n") + 1 for name in names)  # every row is as high as the highest one
    figure = new_figure(9, 1.2 + (0.24 + LINE_INCHES * lines) * len(rows))
    axis = figure.subplots()
    for number, (_, (value, low, high), dots) in enumerate(rows):
        colour, _ = style(number)
        axis.plot(dots, np.full(len(dots), number), "o", color=colour, markersize=6, alpha=0.45, markeredgewidth=0)
        axis.plot([low, high], [number, number], color=colour, linewidth=2)
        axis.plot([value], [number], "|", color=colour, markersize=14, markeredgewidth=2.5)
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.xaxis.set_major_locator(MaxNLocator(MOST_TICKS))
    axis.set_xlabel(label)
    axis.set_title(title, loc="left", fontweight="bold")
    tidy(axis)
    axis.tick_params(axis="y", length=0)
    figure.savefig(picture, dpi=110)


def _named(result: Result, game: Game) -> str:
    """The name of the setting, with its number of seeds if settings have different numbers."""
    count = len(result.runs)
    alike = {len(each.runs) for each in game.results} == {count}
    return result.setting if alike else f"{result.setting} ({count} seed{'s' * (count > 1)})"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that size in inches, without pyplot, which keeps every figure in global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axis: Axes) -> None:
    """Show a pale grid, and hide the upper and the right spine."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)


def style(number: int) -> tuple[str, str]:
    """Return the colour and the dashes of the setting with that number."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
