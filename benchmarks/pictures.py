"""The pictures of a report: curves with intervals over seeds, and scores with intervals, named beside the lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.aggregates import Estimate, mean_curve, on_grid
from benchmarks.comparison import Game, Overall, Result
from benchmarks.runs import Run
from learner.metrics.curve import frames_unit, time_unit

# Okabe and Ito's colours, told apart with every kind of colour vision; without the yellow, too light for a line on white.
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
DASHES = ("-", "--", ":")
POINTS = 300
MOST_TICKS = 5  # with more, long numbers touch beside long names
LABEL_GAP = 0.055  # of the axis' height, between two names at the end of lines


def draw_curves(game: Game, picture: Path, threshold: float | None) -> None:
    """Return against frames and against wall time. By time, a run that has ended keeps its last value until all have."""
    figure = _figure(11, 4.4)
    by_frames, by_time = figure.subplots(1, 2, sharey=True)
    many, unit = frames_unit(game.horizon)
    _draw_side(by_frames, game, lambda run: run.frames / many, game.horizon / many, f"emulator frames, {unit}", named=False)
    longest = 60 * max(result.minutes.max() for result in game.results)
    scale, unit = time_unit(longest)
    _draw_side(by_time, game, lambda run: run.seconds / scale, longest / scale, f"wall time, {unit}", named=True)
    by_frames.set_ylabel("return (raw, mean of the last training episodes)")
    figure.suptitle(f"{game.env}: mean over seeds and its 95 % interval", x=0.01, ha="left", fontweight="bold")
    for axis in (by_frames, by_time):
        if threshold is not None:
            axis.axhline(threshold, color="#999999", linewidth=0.8, linestyle=(0, (4, 4)))
    figure.savefig(picture, dpi=110)


def _draw_side(axis: Axes, game: Game, x_of: Callable[[Run], np.ndarray], right: float, label: str, *, named: bool) -> None:
    ends = []
    for number, result in enumerate(game.results):
        until = max(np.interp(game.horizon, run.frames, x_of(run)) for run in result.runs)
        grid = np.linspace(0, until, POINTS)
        centre, low, high = mean_curve(np.stack([_up_to_horizon(game, run, x_of(run), grid) for run in result.runs]))
        colour, dashes = _style(number)
        axis.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(grid, centre, color=colour, linestyle=dashes, linewidth=1.6)
        again = "" if dashes == DASHES[0] else f"{dashes} "
        ends.append((float(centre[-1]), again + _named(result, game), colour))
    axis.set_xlim(0, right)
    axis.set_xlabel(label)
    _tidy(axis)
    if named:
        _name_ends(axis, ends)


def _up_to_horizon(game: Game, run: Run, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The run's curve on `grid`, up to the frames at which all are compared and level from there on; NaN before it begins."""
    before = run.frames < game.horizon
    ends = [np.interp(game.horizon, run.frames, values) for values in (x, run.returns)]
    return on_grid(np.append(x[before], ends[0]), np.append(run.returns[before], ends[1]), grid)


def _name_ends(axis: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write every line's name right of the axis at the height of its end, moved apart where they would touch."""
    low, high = axis.get_ylim()
    wanted = sorted(((value - low) / (high - low), name, colour) for value, name, colour in ends)
    heights: list[float] = []
    for height, _, _ in wanted:
        heights.append(max(height, heights[-1] + LABEL_GAP) if heights else height)
    shift = max(0.0, heights[-1] - 1.0)
    for (_, name, colour), height in zip(wanted, heights, strict=True):
        axis.annotate(
            name,
            (1.0, height - shift),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            annotation_clip=False,
        )


def draw_scores(game: Game, picture: Path) -> None:
    """Every run's score as a dot, the mean over seeds with its interval as a line."""
    rows = [(_named(result, game), result.score(), result.scores) for result in game.results]
    _draw_intervals(rows, picture, f"{game.env} at {game.horizon:,.0f} frames", "return (raw); a dot is one seed")


def draw_overall(overall: Sequence[Overall], picture: Path) -> None:
    """Interquartile mean over games and seeds with its interval."""
    rows = [(each.setting, each.interquartile_mean, np.zeros(0)) for each in overall]
    label = "interquartile mean of human-normalised scores, per cent"
    _draw_intervals(rows, picture, f"{overall[0].games} games", label)


def _draw_intervals(rows: Sequence[tuple[str, Estimate, np.ndarray]], picture: Path, title: str, label: str) -> None:
    figure = _figure(8, 1.2 + 0.42 * len(rows))
    axis = figure.subplots()
    for number, (_, (value, low, high), dots) in enumerate(rows):
        colour, _ = _style(number)
        axis.plot(dots, np.full(len(dots), number), "o", color=colour, markersize=6, alpha=0.45, markeredgewidth=0)
        axis.plot([low, high], [number, number], color=colour, linewidth=2)
        axis.plot([value], [number], "|", color=colour, markersize=14, markeredgewidth=2.5)
    axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.xaxis.set_major_locator(MaxNLocator(MOST_TICKS))
    axis.set_xlabel(label)
    axis.set_title(title, loc="left", fontweight="bold")
    _tidy(axis)
    axis.tick_params(axis="y", length=0)
    figure.savefig(picture, dpi=110)


def _named(result: Result, game: Game) -> str:
    """The setting, with its number of seeds where settings differ in it."""
    count = len(result.runs)
    alike = {len(each.runs) for each in game.results} == {count}
    return result.setting if alike else f"{result.setting} ({count} seed{'s' * (count > 1)})"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)


def _style(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
