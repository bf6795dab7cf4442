"""Reads finished and unfinished runs back from their directories, and sorts them by what was run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from agents import AGENTS
from benchmarks.plan import SUITE_FILE, newest_run, read_plan
from learner.metrics.metrics import read_metrics
from learner.runs.directory import RunDirectory
from learner.settings.renames import rename_settings
from learner.settings.schema import DEFAULTS, UNLEARNED_SETTINGS, agent_of, default_settings
from replay import ReplayConfig, parse_replay_parameters

RETURN = "charts/episodic_return_mean"
NOT_COMPARED = {"env", "seed", *UNLEARNED_SETTINGS}
"""Settings in which two runs of the same setting may differ."""


@dataclass(frozen=True)
class Run:
    """One run. frames, steps, seconds, returns: the points `[n]` of its curve, none before its first ended episode.

    returns: mean raw return of the last training episodes (`return_window` of them).
    """

    path: Path
    setting: str
    env: str
    seed: int
    finished: bool
    frames: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray
    config: dict[str, Any]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Run directories at or below each path; of a suite's folder for one run the newest. Raises ValueError."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path}: wanted a run directory or a folder with some, got no folder")
        folder = path.resolve()
        inside = [folder] if (folder / "config.json").is_file() else sorted(file.parent for file in folder.rglob("config.json"))
        if not inside:
            raise ValueError(f"{path}: wanted a run directory or a folder with some, got neither config.json nor runs")
        found.update(dict.fromkeys(run for run in inside if not _is_superseded(run)))
    return list(found)


def _is_superseded(run: Path) -> bool:
    if read_plan(run.parent) is None:
        return False
    newest = newest_run(run.parent)
    return newest is not None and newest.path != run


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run with the name of its setting: the suite's variant, or else what sets it apart from the others."""
    configs = [_read_config(path) for path in paths]
    plans = [read_plan(path.parent) for path in paths]
    several = len({plan["suite"] for plan in plans if plan}) > 1
    loose = [config["settings"] for config, plan in zip(configs, plans, strict=True) if plan is None]
    names = name_settings(loose)
    runs = []
    for path, config, plan in zip(paths, configs, plans, strict=True):
        prefix = f"{plan['suite']}: " if plan and several else ""
        setting = f"{prefix}{plan['variant']}" if plan else names[_identity(config["settings"])]
        runs.append(_load_run(path, config, setting))
    return sorted(runs, key=lambda run: (run.env, _place(run), run.setting, run.seed))


def _read_config(path: Path) -> dict[str, Any]:
    """A run's config.json, whose settings have the names that they have now."""
    config = json.loads((path / "config.json").read_text())
    return {**config, "settings": rename_settings(config["settings"])}


def _load_run(path: Path, config: dict[str, Any], setting: str) -> Run:
    directory = RunDirectory(path)
    columns = read_metrics(directory.metrics) if directory.metrics.is_file() else {}
    returns = columns.get(RETURN, np.zeros(0))
    known = np.isfinite(returns)
    summary = json.loads(directory.summary.read_text()) if directory.summary.is_file() else {}
    frames, steps, seconds = (columns[name][known] if len(returns) else returns for name in ("frames", "steps", "seconds"))
    return Run(
        path=path,
        setting=setting,
        env=config["settings"]["env"],
        seed=config["settings"]["seed"],
        finished=bool(summary.get("finished")),
        frames=frames,
        steps=steps,
        seconds=seconds,
        returns=returns[known],
        config=config,
    )


def _place(run: Run) -> int:
    """Where the suite file lists the run's variant, so that a report keeps its order."""
    plan = read_plan(run.path.parent)
    suite = run.path.parents[3] / SUITE_FILE
    if plan is None or not suite.is_file():
        return 0
    variants = list(json.loads(suite.read_text())["variants"])
    return variants.index(plan["variant"]) if plan["variant"] in variants else len(variants)


def name_settings(settings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Identity of each setting -> its name, made of what differs between them; the network where nothing does."""
    different = {_identity(each): _compared(each) for each in settings}
    names = {name: None for each in different.values() for name in each}
    varying = [name for name in names if len({each[name] for each in different.values() if name in each}) > 1]
    return {
        identity: ", ".join(each[name] if name == "replay_parameters" else f"{name}={each[name]}" for name in varying)
        or each["network"]
        for identity, each in different.items()
    }


def _identity(settings: dict[str, Any]) -> str:
    return json.dumps(_compared(settings))


def _compared(settings: dict[str, Any]) -> dict[str, Any]:
    """What makes a setting; a run of an older version has the default of a setting that it did not know."""
    agent = agent_of(settings)
    defaults = default_settings(agent) if agent in AGENTS else DEFAULTS
    full = {**defaults, **settings}
    full["replay_parameters"] = _describe(full["replay_parameters"])
    return {name: full[name] for name in defaults if name not in NOT_COMPARED}


def _describe(replay_parameters: str) -> str:
    """`queue 0.5 of 1 + standard 0.5 of 1,000`, and in brackets what is not the default."""
    told = []
    for replay in parse_replay_parameters(replay_parameters):
        extras = [
            f"{field.name}={getattr(replay, field.name)}"
            for field in fields(ReplayConfig)
            if field.default is not MISSING and getattr(replay, field.name) != field.default
        ]
        told.append(
            f"{replay.type} {replay.sample_ratio:g} of {replay.capacity:,}" + (f" ({', '.join(extras)})" if extras else "")
        )
    return " + ".join(told)
