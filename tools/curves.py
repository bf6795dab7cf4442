"""Keeps learning curves of runs in a small table, and draws a panel for each game.

    python -m tools.curves keep docs/curves/atari_small.csv results/atari_small
    python -m tools.curves draw docs/atari_small.png docs/curves/atari_small.csv docs/curves/rl_zoo.csv

A table is a CSV file with a line for each point: env, setting, seed, frames, return. A return is the mean raw return of the
last training episodes. `keep` adds the curves of runs, or replaces those of the same env, setting and seed, so curves stay
when their runs are deleted. `draw` shows the curves of several tables, as means over seeds with intervals.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from checked_files import locked, replacing
from learner.metrics.curve import frames_unit
from tools.aggregates import on_grid
from tools.pictures import LINE_INCHES, POINTS, draw_mean, new_figure, style, tidy
from tools.runs import find_runs, load_runs
from tools.termination import end_with

COLUMNS = ("env", "setting", "seed", "frames", "return")
KEPT = 100  # points of a curve in a table
FEW = 5  # curves with at most as many points are drawn as dots: scores that others have published
PANELS = 4  # in a row
PANEL_INCHES = (3.0, 2.4)
LETTER_INCHES, LINE_LETTERS = 0.075, 9  # width of a letter in the legend, and of a line with the space around it in letters


class Curve(NamedTuple):
    """One run's curve. frames, returns: float64 `[points]`."""

    env: str
    setting: str
    seed: int
    frames: np.ndarray
    returns: np.ndarray

    @property
    def key(self) -> tuple[str, str, int]:
        return self.env, self.setting, self.seed


def read_table(path: Path) -> list[Curve]:
    """Return the curves of a table, in the order of their first lines. Raises ValueError for a file that is no table."""
    points: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    try:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                key = (line["env"], line["setting"], int(line["seed"]))
                points.setdefault(key, []).append((float(line["frames"]), float(line["return"])))
    except (KeyError, TypeError, ValueError, OSError, csv.Error) as error:
        raise ValueError(f"{path}: wanted a table with the columns {', '.join(COLUMNS)}, got {error!r:.200}") from None
    if not all(env and setting for env, setting, _ in points):
        raise ValueError(f"{path}: wanted a name in every cell of env and setting, got an empty one")
    if not np.isfinite([point for each in points.values() for point in each]).all():
        raise ValueError(f"{path}: wanted finite frames and returns, got others")
    return [Curve(*key, *np.array(each).T) for key, each in points.items()]


def write_table(path: Path, curves: Iterable[Curve]) -> None:
    """Write curves, sorted by environment, setting and seed. The file is replaced when the new one is complete."""
    with replacing(path) as new_file, new_file.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for curve in sorted(curves, key=lambda curve: curve.key):
            for frames, value in zip(curve.frames, curve.returns, strict=True):
                writer.writerow([*curve.key, f"{frames:.0f}", f"{value:.6g}"])


def curves_of_runs(paths: Sequence[Path], setting: str | None) -> list[Curve]:
    """Return the curves of runs with `KEPT` points at equal distances, from the first ended episode to the newest record.

    Args:
        paths: run directories, or folders with run directories below them.
        setting: name of the setting; None for the name that a report gives it.
    """
    curves = []
    for run in load_runs(find_runs(paths)):
        if not len(run.frames):
            raise ValueError(f"{run.path}: wanted a run with ended episodes, got none")
        frames = np.linspace(run.frames[0], run.frames[-1], KEPT)
        curves.append(Curve(run.env, setting or run.setting, run.seed, frames, np.interp(frames, run.frames, run.returns)))
    return curves


def keep(table: Path, curves: Iterable[Curve]) -> None:
    """Add curves to a table, which is made if necessary. A curve replaces that of the same environment, setting and seed."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with locked(table.parent):  # another process may be adding curves too
        kept = {curve.key: curve for curve in (read_table(table) if table.is_file() else [])}
        write_table(table, (kept | {curve.key: curve for curve in curves}).values())


def draw(picture: Path, curves: Sequence[Curve]) -> None:
    """Draw return against frames as a PNG: a panel for each environment, a colour for each setting in all panels.

    Environments that have published scores alone are left out. Raises ValueError if no environment is left.
    """
    envs = list(dict.fromkeys(curve.env for curve in curves if len(curve.frames) > FEW))
    if not envs:
        raise ValueError(f"{picture}: wanted a curve with more than {FEW} points, got none")
    settings = list(dict.fromkeys(curve.setting for curve in curves if curve.env in envs))
    columns = min(PANELS, len(envs))
    rows = -(-len(envs) // columns)
    width, height = PANEL_INCHES
    name_inches = LETTER_INCHES * (max(map(len, settings)) + LINE_LETTERS)
    names_in_a_row = max(1, int(width * columns / name_inches))
    figure = new_figure(width * columns, height * rows + 0.2 + LINE_INCHES * -(-len(settings) // names_in_a_row))
    panels = figure.subplots(rows, columns, squeeze=False).flat
    many, unit = frames_unit(max(curve.frames.max() for curve in curves))
    for env, axis in zip(envs, panels, strict=False):
        for number, setting in enumerate(settings):
            here = [curve for curve in curves if (curve.env, curve.setting) == (env, setting)]
            if here:
                _draw_setting(axis, number, here, many)
        axis.set_title(env.removesuffix("NoFrameskip-v4"), fontsize=10)
        axis.set_xlabel(f"frames, {unit}", fontsize=9)
        axis.set_xlim(left=0)
        tidy(axis)
    for axis in panels:  # those that no environment has taken
        axis.set_axis_off()
    lines = {line.get_label(): line for axis in figure.axes for line in axis.get_lines()}
    handles = [lines[name] for name in settings]
    figure.legend(handles, settings, loc="outside lower center", ncols=min(len(settings), names_in_a_row), frameon=False)
    figure.supylabel("return", fontsize=9)
    figure.savefig(picture, dpi=110)


def _draw_setting(axis: Axes, number: int, curves: Sequence[Curve], many: float) -> None:
    """Draw a setting's curves as their mean over seeds, up to the frames that all seeds have. Few points are drawn as dots.

    number: of the setting, which decides its colour. many: frames in a unit of the axis.
    """
    label = curves[0].setting
    if all(len(curve.frames) <= FEW for curve in curves):
        colour, _ = style(number)
        for curve in curves:
            axis.plot(curve.frames / many, curve.returns, "o", color=colour, markersize=4, label=label)
        return
    grid = np.linspace(0, min(curve.frames[-1] for curve in curves), POINTS)
    draw_mean(axis, number, grid / many, np.stack([on_grid(curve.frames, curve.returns, grid) for curve in curves]), label)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="add the curves of runs to a table")
    keeping.add_argument("table", type=Path, help="CSV file")
    keeping.add_argument("runs", nargs="+", type=Path, help="run directories, or folders with run directories below them")
    keeping.add_argument("--setting", help="name of the runs' setting (default: as in a report)")
    drawing = commands.add_parser("draw", help="draw the curves of tables")
    drawing.add_argument("picture", type=Path, help="PNG file")
    drawing.add_argument("tables", nargs="+", type=Path, help="CSV files")
    arguments = parser.parse_args()
    try:
        if arguments.command == "keep":
            keep(arguments.table, curves_of_runs(arguments.runs, arguments.setting))
        else:
            draw(arguments.picture, [curve for table in arguments.tables for curve in read_table(table)])
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    end_with(main)
