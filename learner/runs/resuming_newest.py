"""`--resume_if_exists`: a command that begins a run, resumes it, or finds it finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learner.runs.directory import RunDirectory
from learner.settings.check import check_given
from learner.settings.presets import apply_preset
from learner.settings.schema import DEFAULTS, Settings, agent_of
from workers.base import SERVED
from wrappers.spec import tasks_of


class FinishedError(Exception):
    """The run that the command would resume is finished. The message is a line for the user, and nothing has failed."""


def resume_if_exists(op_mode: str, given: Settings) -> tuple[str, Settings, list[str]]:
    """The mode and the settings of the command, which name the run that is resumed, if any, and a line about it.

    given: the settings that the command gives. Raises ValueError.
    """
    whole = apply_preset(given)
    if op_mode != "train" or not whole.get("resume_if_exists"):
        return op_mode, given, []
    check_given(whole)
    settings = {**DEFAULTS, **whole}
    # The environment of a served run is that of its first client, so the command may not name it.
    name = "env" if "env" in whole or settings["worker_kind"] != SERVED else "worker_kind"
    results, agent, wanted = Path(settings["results_dir"]), agent_of(settings), settings[name]
    if (run := newest_run(results, {"agent": agent, name: wanted})) is None:
        return op_mode, given, [f"resume_if_exists: no run of {wanted} with agent {agent} in {results}/ has a checkpoint"]
    return "train_w_load", {**given, "load": str(run.path)}, [f"resume_if_exists: resumes {run.path}"]


def newest_run(results: Path, wanted: Settings) -> RunDirectory | None:
    """The run with these settings that has the newest checkpoint; None if no run has one."""
    found = []
    for config in results.glob("*/config.json"):
        if config.parent.is_symlink():
            continue  # `latest` names a run that has a folder of its own
        run = RunDirectory(config.parent)
        settings = {**DEFAULTS, **run.settings}
        same = all(_plain(name, settings[name]) == _plain(name, value) for name, value in wanted.items())
        if same and (checkpoints := run.checkpoint_paths()):
            found.append((checkpoints[-1].stat().st_mtime, str(run.path), run))
    return max(found)[2] if found else None


def _plain(name: str, value: Any) -> Any:
    """A setting's value as it compares: the ids of several environments may have spaces between them."""
    return tasks_of(value) if name == "env" else value


def check_unfinished(run: RunDirectory | None, steps: int, total: int) -> None:
    """Raise FinishedError if the run has all its steps.

    A number of steps that is given again does not count as more steps here: a command that is repeated would never end.
    """
    if steps >= total:
        where = f" Run directory: {run.path}" if run else ""
        raise FinishedError(f"Finished before: {steps:,} of {total:,} steps. --more_steps=N trains N more.{where}")
