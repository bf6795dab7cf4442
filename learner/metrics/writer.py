"""Writes metrics: metrics.csv and TensorBoard hold the same numbers under the same names.

A record covers the time since the record before: `log_period` seconds, or a twentieth of the run if that is shorter.

Names and units:

| name | number |
|---|---|
| seconds, steps, frames, updates, episodes | since the run began: wall time of training, agent steps, emulator frames, counts |
| charts/episodic_return, charts/episodic_length | means over episodes that ended: raw return, steps |
| charts/episodic_return_mean | mean raw return of the last `return_window` episodes |
| tasks/ENV/episodic_return, tasks/ENV/episodic_length, tasks/ENV/episodic_return_mean | the same of each of several ones |
| charts/human_normalised | mean over several games of the human-normalised score of `episodic_return_mean`, in per cent |
| info/NAME_at_end | NAME of `info` at the last step of episodes, mean of the last `return_window`; truth values are 0 or 1 |
| info/NAME_mean | mean of NAME over all steps at which the environment gave it |
| charts/policy_lag | updates between acting and learning, mean of fresh columns |
| charts/learning_rate | of the newest update |
| charts/SPS, charts/FPS, charts/updates_per_second | agent steps, emulator frames and updates per second |
| losses/*, and other names of the agent | means over updates of rank 0's part of the batch; the agent documents them |
| replay/NAME/policy_lag | updates, mean of the columns from this replay |
| replay/NAME/* | the replay documents them |
| exchange/runs, exchange/taken, exchange/gaps | runs that share experience; trajectories taken; times that some were missed |
| time/learner_*, time/worker_*, time/feeder_* | fractions of wall time; of workers the mean. Names with _cpu: CPU time only |
| feeder/depth, feeder/late_fraction | batches prepared ahead; fraction that came late although their data was there |
| cores/workers, cores/learner, cores/evaluation | cores that are busy; evaluation includes processes that start |
| cores/others, cores/idle | cores that other programs keep busy; cores without work |
| hardware/cpu_percent, hardware/gpu_percent | per cent of the cores that the run may use, and of the GPU's time |
| hardware/memory_gb, hardware/gpu_memory_gb, hardware/gpu_memory_of_learner_gb | 10^9 bytes |
| hardware/processes | processes of the run |
| ranks/allreduce_seconds | of adding one step's gradients, with the wait for the slowest learner; on a GPU the host's part |
| ranks/wait_RANK | fraction of its time that a learner waits for the batches of others |
| workers/restarts, updates/skipped | counts since the command began |
| updates/optimizer_steps | steps of the optimiser since the run began, if an update takes several |
| eval/episodic_return, eval/standard_error | raw return of an evaluation during training |
| eval/ENV/episodic_return, eval/human_normalised | of each of several environments, and the mean over games, in per cent |
| eval/info/NAME_at_end, eval/info/NAME_mean | the same means over the episodes of that evaluation |
| eval/update, eval/steps | update and agent steps of the weights that were evaluated |

A name is absent, and its cell empty, if there was nothing to measure. Numbers that are not finite are left out.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.metrics.graph import trace
from learner.metrics.infos import PREFIX
from learner.metrics.statistics import Record
from learner.metrics.tensorboard import Charts, add_animation, add_histogram, open_tensorboard
from learner.metrics.trackers import Tracking
from learner.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from agents.networks.base import FeatureNetwork
    from workers.served.histograms import Histogram
    from wrappers import EnvSpec

log = logging.getLogger("springbok")

X_AXES = ("seconds", "steps", "frames")


class MetricsWriter:
    """Writes one record at a time. A record that cannot be written is lost; one warning says so until writing succeeds again.

    Args:
        run: directory of the run.
        from_step: step that a resumed run continues from; later records are removed.
        charts: TensorBoard charts of the metrics that the agent reports.
        tracking: gets the numbers of each record too.
    """

    LEADING = (*X_AXES, "updates", "episodes")

    def __init__(
        self, run: RunDirectory, from_step: int = 0, charts: Charts | None = None, tracking: Tracking | None = None
    ) -> None:
        self._path = run.metrics
        self._run = run
        self._from_step = from_step
        self._to_cut = from_step  # records after this step are still to be removed; 0 once they are
        self._charts = charts or {}
        self._tracking = tracking
        self._names: list[str] = []
        self._tensorboard: SummaryWriter | None = None
        self._failing = False
        self._attempt(self._cut_back)

    def write(self, counters: Mapping[str, float], record: Record) -> None:
        """Write a record. counters: the `LEADING` columns; `steps` is the x axis of TensorBoard."""
        finite = {name: value for name, value in record.items() if math.isfinite(value)}
        self._attempt(self._write, counters, finite)
        if self._tracking:
            self._tracking.add(finite, int(counters["steps"]))

    def add_animation(self, name: str, path: Path, steps: int) -> None:
        """Show a GIF in TensorBoard."""
        self._attempt(self._add_animation, name, path, steps)

    def add_histograms(self, histograms: Mapping[str, Histogram], steps: int) -> None:
        """Show the distribution of the numbers that clients sent as metrics, under Histograms of TensorBoard."""
        if histograms:
            self._attempt(self._add_histograms, histograms, steps)

    def _add_histograms(self, histograms: Mapping[str, Histogram], steps: int) -> None:
        with self._open_tensorboard() as tensorboard:
            for name, each in histograms.items():
                add_histogram(tensorboard, f"{PREFIX}{name}", each, steps)

    def close(self) -> None:
        """Flush and close TensorBoard's file. The next record opens another one."""
        tensorboard, self._tensorboard = self._tensorboard, None
        with contextlib.suppress(OSError):
            if tensorboard:
                tensorboard.close()

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Training continues without metrics if the disk is full: an OSError is only a warning."""
        try:
            action(*arguments)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("Metrics could not be written: %s; training continues", error.strerror or error)
            self._failing = True

    def _write(self, counters: Mapping[str, float], record: Record) -> None:
        self._cut_back()
        self._write_cells({**{name: counters[name] for name in self.LEADING}, **record})
        with self._open_tensorboard() as tensorboard:
            for name, value in record.items():
                tensorboard.add_scalar(name, value, int(counters["steps"]))

    def add_graph(self, network: FeatureNetwork, spec: EnvSpec) -> None:
        """Show the graph of the network in TensorBoard; one line says why if that is not possible."""
        self._attempt(self._add_graph, network, spec)

    def _add_graph(self, network: FeatureNetwork, spec: EnvSpec) -> None:
        with self._open_tensorboard() as tensorboard:
            if reason := trace(network, spec, tensorboard):
                log.warning("log_graph: wanted a network that can be traced, got %s", reason)

    def _add_animation(self, name: str, path: Path, steps: int) -> None:
        gif = path.read_bytes()
        with self._open_tensorboard() as tensorboard:
            add_animation(tensorboard, name, gif, steps)

    @contextlib.contextmanager
    def _open_tensorboard(self) -> Iterator[SummaryWriter]:
        if self._tensorboard is None:
            self._tensorboard = open_tensorboard(self._run, self._from_step, self._charts)
            # Another file of this run must not hide the events that the first one wrote.
            self._from_step = 0
        try:
            yield self._tensorboard
        except OSError:
            self.close()  # after an error TensorBoard's writer accepts nothing more
            raise

    def _write_cells(self, record: Mapping[str, float]) -> None:
        cells = {name: _cell(value) for name, value in record.items()}
        new = [name for name in record if name not in self._names]
        if new or not self._path.is_file():  # a name is seen for the first time: the header grows
            earlier = _records_up_to(self._path, int(record["steps"])) if self._names else []
            self._rewrite([*earlier, cells], [*self._names, *new])
            return
        size = self._path.stat().st_size
        try:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._names).writerow(cells)
        except OSError:
            os.truncate(self._path, size)  # half a record would spoil the next one
            raise

    def _cut_back(self) -> None:
        """Remove records after the step that the run continues from, once: the run writes them again. Raises OSError."""
        if records := _records_up_to(self._path, self._to_cut):
            self._rewrite(records, list(records[0]))
        # After an error the next record comes here first: without the names of the file it would replace the whole history.
        self._to_cut = 0

    def _rewrite(self, records: list[dict[str, str]], names: list[str]) -> None:
        # A kill or a full disk leaves the old file, because the new one gets its name when it is complete.
        new_file = self._path.with_suffix(".new")
        with new_file.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(records)
        new_file.replace(self._path)
        self._names = names


def check_history(path: Path) -> None:
    """Raise ValueError in one line if records cannot be added to a metrics.csv, which would be lost."""
    try:
        if path.is_file() and path.stat().st_size:
            with path.open(newline="") as file:
                names = next(csv.reader(file), [])
            if "steps" not in names:
                raise ValueError("no column steps")
            _records_up_to(path, sys.maxsize)
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)[:200]
        where = "move it away or resume with --resume_in=new"
        raise ValueError(f"{path}: wanted the metrics of a run, got {reason}; {where}") from None


def read_metrics(path: Path, needed: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns of metrics.csv as float64, NaN for an empty cell; {} for an empty file.

    The file is read line by line: all cells of a long run as text would take many times the memory of the numbers.

    needed: columns without which a file is none of metrics. Raises ValueError in one line that names the file, or OSError.
    """
    try:
        with path.open(newline="") as file:
            lines = csv.reader(file)
            names = next(lines, [])
            columns = [array("d") for _ in names]
            for line in lines:
                for index, column in enumerate(columns):
                    column.append(float(line[index]) if index < len(line) and line[index] else math.nan)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: wanted a table of numbers, got {str(error)[:200]}") from None
    found = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
    if found and (missing := [name for name in needed if name not in found]):
        raise ValueError(f"{path}: wanted the metrics of a run with the column {missing[0]}, got {', '.join(found)[:200]}")
    return found


def _records_up_to(path: Path, step: int) -> list[dict[str, str]]:
    """The whole records up to `step`; a line that was cut short is left out."""
    if not path.is_file() or not step:
        return []
    with path.open(newline="") as file:
        return [record for record in csv.DictReader(file) if None not in record.values() and int(record["steps"]) <= step]


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
