"""The summary that a run writes at its end, if it still holds."""

from __future__ import annotations

import csv
import json
from typing import Any

from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory


def read_summary(run: RunDirectory) -> dict[str, Any]:
    """Return summary.json of a run that has ended, or {} if there is none, or none of the run's newest command.

    A resumed run leaves the summary of its earlier end in place until it ends again. That summary is recognised by its
    steps: they differ from the newest row of metrics, or a finished run has fewer than the present budget.
    """
    try:
        summary = json.loads(run.summary.read_text())
        budget = json.loads(run.config.read_text())["settings"].get("environment_max_steps", 0)
        steps, finished = summary["steps"], summary["finished"]
        is_newest = not run.metrics.is_file() or read_metrics(run.metrics)["steps"][-1] == steps
        return summary if is_newest and not (finished and steps < budget) else {}
    except (IndexError, KeyError, OSError, TypeError, ValueError, csv.Error):  # no summary, or a file that is being written
        return {}
