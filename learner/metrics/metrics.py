"""One writer of metrics: metrics.csv and TensorBoard show the same numbers under the same names."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learner.metrics.board import add_animation, open_board
from learner.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger("springbok")

Row = dict[str, float]


class UpdateMetrics:
    """Mean of the updates' scalars since the last reading, summed on the device so that no update waits for a number."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sums: Tensor | None = None  # [2, names]: sum of the numbers, and how many there were

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        values = torch.stack([value.float() for value in scalars.values()])
        known = values.isfinite()
        entry = torch.stack([torch.where(known, values, 0.0), known.float()])
        self._names = list(scalars)
        self._sums = entry if self._sums is None else self._sums + entry

    def read(self) -> Row:
        """The means over the updates in which a scalar was finite, and start anew; empty where no update was made."""
        if self._sums is None:
            return {}
        sums, counts = self._sums.tolist()
        self._sums = None
        return {name: total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count}


class Episode(NamedTuple):
    """A whole episode: its raw return, and its length in steps."""

    episode_return: float
    length: int


def ended_episodes(trajectory: Mapping[str, np.ndarray]) -> list[Episode]:
    """The episodes that ended in a trajectory (`[*shape]` each field)."""
    returns, lengths = trajectory["episode_return"], trajectory["episode_length"]
    return [Episode(float(returns[row]), int(lengths[row])) for row in np.flatnonzero(lengths)]


class EpisodeStatistics:
    """Raw returns and lengths of whole episodes."""

    def __init__(self, window: int) -> None:
        self.count = 0
        self.recent: deque[float] = deque(maxlen=window)
        self._new: list[Episode] = []

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.count += 1
            self._new.append(episode)
            self.recent.append(episode.episode_return)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, None before the first."""
        return float(np.mean(self.recent)) if self.recent else None

    def read(self) -> Row:
        """Means since the last reading and over the window; a name is absent where no episode has ended."""
        row: Row = {}
        if self._new:
            row["charts/episodic_return"], row["charts/episodic_length"] = np.mean(self._new, axis=0).tolist()
            self._new = []
        if self.mean_return is not None:
            row["charts/episodic_return_mean"] = self.mean_return
        return row


class LagStatistics:
    """Policy lag in updates, learner's version minus acting version: of fresh columns, and of each replay of the mixture."""

    def __init__(self, replay_names: Sequence[str]) -> None:
        self._names = [f"replay/{name}/policy_lag" for name in replay_names]
        self._values: dict[str, list[float]] = {}

    def add(self, update: int, policy_version: np.ndarray, is_replay: np.ndarray, source: np.ndarray) -> None:
        """policy_version `[B, T]`, is_replay and source (index of the replay) `[B]`."""
        lag = update - policy_version.mean(1)
        groups = {"charts/policy_lag": ~is_replay, **{name: source == index for index, name in enumerate(self._names)}}
        for name, columns in groups.items():
            if columns.any():
                self._values.setdefault(name, []).append(float(lag[columns].mean()))

    def read(self) -> Row:
        row = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values = {}
        return row


class TimeShares:
    """Which part of the wall time went into what: the learner's own stages, and those of whoever keeps clocks.

    clocks: by owner, the names of its stages and their seconds, float64 `[owners, len(names)]`, read and never written
    here. Of several owners (worker processes) it is their mean.
    """

    def __init__(self, clocks: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
        self._clocks = clocks
        self._learner: Row = {}
        self._before = self._totals()

    def add(self, stage: str, seconds: float) -> None:
        """Count learner time spent in `stage`."""
        name = f"time/learner_{stage}"
        self._learner[name] = self._learner.get(name, 0.0) + seconds

    def read(self, passed: float) -> Row:
        """Shares of the `passed` seconds since the last reading."""
        totals = self._totals()
        shares = {name: (seconds - self._before.get(name, 0.0)) / passed for name, seconds in totals.items()}
        self._before = totals
        return shares

    def _totals(self) -> Row:
        totals = dict(self._learner)
        for owner, (names, seconds) in self._clocks.items():
            totals |= {f"time/{owner}_{name}": total for name, total in zip(names, seconds.mean(0).tolist(), strict=True)}
        return totals


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

    def write(self, counters: Mapping[str, float], row: Row) -> None:
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

    def _write(self, counters: Mapping[str, float], row: Row) -> None:
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
