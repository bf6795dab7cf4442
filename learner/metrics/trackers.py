"""Trackers: services that keep the metrics of many runs. They get the numbers of TensorBoard under the same names.

Everything stays on this machine unless the tracker's own variables name a server: WANDB_MODE=online, MLFLOW_TRACKING_URI or
TRACKIO_SERVER_URL. A run's record has the name of its run directory, so a resumed run continues it.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from learner.runs.directory import RunDirectory

log = logging.getLogger("springbok")

NO_TRACKER = "none"
PROJECT = "springbok"
LONGEST_PARAMETER = 6000  # characters that MLflow takes
PARAMETERS_AT_ONCE = 100


class Tracker(ABC):
    """The record of one run. Constructor and methods raise whatever the package raises.

    Args:
        run: its directory, whose name is that of the record.
        settings: of the run.
    """

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        self.name = run.path.name

    @abstractmethod
    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Keep numbers of this step."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


class WandbTracker(Tracker):
    """Weights & Biases. Offline, `wandb sync RUN/wandb/offline-run-*` uploads the record later."""

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        super().__init__(run, settings)
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            id=self.name,
            name=self.name,
            dir=str(run.path),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(settings),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(Tracker):
    """MLflow. Without a server, records are in mlflow.db in the results folder: `mlflow ui --backend-store-uri sqlite:///...`."""

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        super().__init__(run, settings)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        results = run.path.resolve().parent
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{results}/mlflow.db"))
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        earlier = self._client.search_runs([experiment], f"attributes.run_name = '{self.name}'")
        self._id = (earlier[0] if earlier else self._client.create_run(experiment, run_name=self.name)).info.run_id
        self._client.update_run(self._id, "RUNNING")
        if not earlier:  # a parameter cannot be changed
            parameters = [Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in settings.items()]
            for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
                self._client.log_batch(self._id, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[self._metric(name, value, now, step) for name, value in numbers.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


class TrackioTracker(Tracker):
    """Trackio. Records are in the folder trackio in the results folder: `TRACKIO_DIR=results/trackio trackio show`."""

    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        super().__init__(run, settings)
        os.environ.setdefault("TRACKIO_DIR", str(run.path.resolve().parent / "trackio"))  # read when it is imported
        import trackio

        self._run = trackio.init(project=PROJECT, name=self.name, resume="allow", config=dict(settings), embed=False)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker, "trackio": TrackioTracker}
"""Name on the command line (`--track`) -> class."""


class Tracking:
    """The tracker of a run, if it has one. After an error one warning says why, and the run continues without it.

    Args:
        name: a key of `TRACKERS`, or none.
        run: its directory.
        settings: of the run.
    """

    def __init__(self, name: str, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        if name != NO_TRACKER:
            try:
                self._tracker = TRACKERS[name](run, settings)
            except Exception as error:  # packages and servers fail in every way, and none is worth a run
                self._give_up(error)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        """Keep numbers of this step."""
        if self._tracker:
            try:
                self._tracker.add(numbers, step)
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        """Write what is left. Safe to call twice."""
        tracker, self._tracker = self._tracker, None
        if tracker:
            try:
                tracker.close()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracker = None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("--track=%s has failed: %s; the run continues without it", self._name, reason)


def check_tracker(name: str) -> None:
    """Raise ValueError with one line if the package of a tracker is not installed."""
    if name != NO_TRACKER and find_spec(name) is None:
        raise ValueError(
            f"track: wanted the package {name} with --track={name}, got an installation without it; run "
            "pip install -r requirements-track.txt"
        )
