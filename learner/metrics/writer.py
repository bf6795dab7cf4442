"""One writer of metrics: metrics.csv and TensorBoard show the same numbers under the same names."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.metrics.tensorboard import add_animation, open_board
from learner.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger("springbok")

Record = dict[str, float]


class MetricsWriter:
    """Writes one row at a time to metrics.csv and TensorBoard. A resumed run goes on behind its last saved step.

    A row that cannot be written is lost, which is said once until rows can be written again.
    """

    LEADING = ("seconds", "steps", "frames", "updates", "episodes")

    def __init__(self, run: RunDirectory, from_step: int = 0) -> None:
        self._path = run.metrics
        self._run = run
        self._from_step = from_step
        self._names: list[str] = []
        self._board: SummaryWriter | None = None
        self._failing = False
        self._attempt(self._cut_back, from_step)

    def write(self, counters: Mapping[str, float], row: Record) -> None:
        """counters: the `LEADING` columns; `steps` is TensorBoard's x axis. Non-finite numbers are left out."""
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self._attempt(self._write, counters, finite)

    def add_animation(self, name: str, path: Path, steps: int) -> None:
        """Show a GIF in TensorBoard."""
        self._attempt(self._add_animation, name, path, steps)

    def close(self) -> None:
        board, self._board = self._board, None
        with contextlib.suppress(OSError):
            if board:
                board.close()

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("Metrics could not be written: %s; training goes on", error.strerror or error)
            self._failing = True

    def _write(self, counters: Mapping[str, float], row: Record) -> None:
        self._write_cells({**{name: counters[name] for name in self.LEADING}, **row})
        with self._open_board() as board:
            for name, value in row.items():
                board.add_scalar(name, value, int(counters["steps"]))

    def _add_animation(self, name: str, path: Path, steps: int) -> None:
        gif = path.read_bytes()
        with self._open_board() as board:
            add_animation(board, name, gif, steps)

    @contextlib.contextmanager
    def _open_board(self) -> Iterator[SummaryWriter]:
        if self._board is None:
            self._board = open_board(self._run, self._from_step)
            self._from_step = 0
        try:
            yield self._board
        except OSError:
            self.close()  # it takes nothing any more after an error; the next row opens another file
            raise

    def _write_cells(self, row: Mapping[str, float]) -> None:
        cells = {name: _cell(value) for name, value in row.items()}
        new = [name for name in row if name not in self._names]
        if new or not self._path.is_file():
            rows = _rows_up_to(self._path, int(row["steps"])) if self._names else []
            self._rewrite([*rows, cells], [*self._names, *new])  # seen for the first time: the header grows
            return
        size = self._path.stat().st_size
        try:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._names).writerow(cells)
        except OSError:
            os.truncate(self._path, size)  # half a row would spoil the next one
            raise

    def _cut_back(self, step: int) -> None:
        """Forget rows after `step`: the run that goes on from there has not seen them."""
        if rows := _rows_up_to(self._path, step):
            self._rewrite(rows, list(rows[0]))

    def _rewrite(self, rows: list[dict[str, str]], names: list[str]) -> None:
        beside = self._path.with_suffix(".new")
        with beside.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        beside.replace(self._path)
        self._names = names


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """metrics.csv as columns of float64; NaN where a cell is empty. Row by row: the learner reads it again and again, and in a
    long run all cells as text would take many times as much."""
    with path.open(newline="") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        columns = [array("d") for _ in names]
        for row in rows:
            for index, column in enumerate(columns):
                column.append(float(row[index]) if index < len(row) and row[index] else math.nan)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def _rows_up_to(path: Path, step: int) -> list[dict[str, str]]:
    if not path.is_file() or not step:
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values() and int(row["steps"]) <= step]


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
