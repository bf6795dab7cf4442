"""The summary that a run writes at its end, if it still holds."""

from __future__ import annotations

from typing import Any

from checked_files import Keys, checked, read_json
from learner.metrics.writer import read_metrics
from learner.runs.directory import RunDirectory
from learner.settings.other_names import rename_settings

CONFIG_KEYS: Keys = {"host": dict, "versions": dict, "command": list}
SETTING_KEYS: Keys = {"agent": str, "replay_parameters": str, "environment_max_steps": int}
PLAIN = (str, float, bool, type(None))
SUMMARY_KEYS: Keys = {"steps": int, "finished": bool}


def read_config(run: RunDirectory, needed: Keys | None = None) -> dict[str, Any]:
    """Return a run's config.json, whose settings have the names that they have now. Raises ValueError in one line.

    needed: settings that must be there; others may be those of an earlier version.
    """
    what = "the config.json of a run"
    config = read_json(run.config, what, {"settings": dict})
    checked(config, f"{run.config}: wanted {what}", {name: kind for name, kind in CONFIG_KEYS.items() if name in config})
    try:
        settings = rename_settings(config["settings"])
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from None
    known = {name: kind for name, kind in SETTING_KEYS.items() if name in settings}
    checked(settings, f"{run.config}: wanted settings", {**dict.fromkeys(settings, PLAIN), **known, **(needed or {})})
    return {**config, "settings": settings}


def read_summary(run: RunDirectory) -> dict[str, Any]:
    """Return summary.json of a run that has ended, or {} if there is none, or none of the run's newest command.

    A resumed run leaves the summary of its earlier end in place until it ends again. That summary is recognised by its
    steps: they differ from the newest row of metrics, or a finished run has fewer than the present budget.
    """
    try:
        summary = {"mean_return": None, "seconds": 0.0, **read_json(run.summary, "the summary of a run", SUMMARY_KEYS)}
        checked(summary, str(run.summary), {"mean_return": (float, type(None)), "seconds": float})
        budget = read_config(run)["settings"].get("environment_max_steps", 0)
        steps, finished = summary["steps"], summary["finished"]
        is_newest = not run.metrics.is_file() or read_metrics(run.metrics)["steps"][-1] == steps
        return summary if is_newest and not (finished and steps < budget) else {}
    except (IndexError, KeyError, OSError, ValueError):  # no summary, or a file that is being written
        return {}
