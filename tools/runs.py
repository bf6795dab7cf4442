"""Reads runs from their directories, names their settings and sorts them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from agents import AGENTS
from checked_files import read_json
from learner.metrics.writer import X_AXES, read_metrics
from learner.runs.directory import RunDirectory
from learner.settings.schema import DEFAULTS, UNLEARNED_SETTINGS, agent_of, default_settings
from replay import ReplayConfig, parse_replay_parameters
from tools.plan import SUITE_FILE, newest_run, read_plan
from tools.summary import read_config, read_summary

RETURN = "charts/episodic_return_mean"
SAID = ("type", "capacity", "sample_ratio")  # of a replay, in any case
NOT_COMPARED = {"env", "seed", *UNLEARNED_SETTINGS}
"""Settings of main.py in which runs of one setting may differ."""
REPLAYS = "replay_parameters"


@dataclass(frozen=True)
class LoadedRun:
    """One run. frames, steps, seconds, returns: points `[n]` of its curve, which begins with the first ended episode.

    returns: mean raw return of the last `return_window` training episodes. config: the content of config.json.
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
    """Return the run directories at or below each path. Raises ValueError for a path without any.

    In a suite's folder for one run only the newest run directory counts.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path}: wanted a run directory or a folder with run directories, got no folder")
        folder = path.resolve()
        inside = [folder] if (folder / "config.json").is_file() else sorted(file.parent for file in folder.rglob("config.json"))
        if not inside:
            raise ValueError(f"{path}: wanted a run directory or a folder with run directories, got neither")
        found.update(dict.fromkeys(run for run in inside if not _is_superseded(run)))
    return list(found)


def _is_superseded(run: Path) -> bool:
    if read_plan(run.parent) is None:
        return False
    newest = newest_run(run.parent)
    return newest is not None and newest.path != run


def load_runs(paths: Sequence[Path]) -> list[LoadedRun]:
    """Read every run. Its setting is named by the suite's variant, or else by its difference from the other runs."""
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
    """The config.json of a run, whose settings can be compared."""
    run = RunDirectory(path)
    config = read_config(run, {"env": str, "seed": int})
    try:
        _compared(config["settings"])
    except ValueError as error:
        raise ValueError(f"{run.config}: {error}") from None
    return config


def _load_run(path: Path, config: dict[str, Any], setting: str) -> LoadedRun:
    directory = RunDirectory(path)
    columns = read_metrics(directory.metrics, X_AXES) if directory.metrics.is_file() else {}
    returns = columns.get(RETURN, np.zeros(0))
    known = np.isfinite(returns)
    if len(returns):  # a result of an evaluation has a row of its own after the last update
        known[:-1] &= np.diff(columns["frames"]) != 0
    frames, steps, seconds = (columns[name][known] if len(returns) else returns for name in ("frames", "steps", "seconds"))
    if len(frames) and not (np.isfinite([frames, steps, seconds]).all() and (np.diff(frames, prepend=0.0) > 0).all()):
        raise ValueError(f"{directory.metrics}: wanted rows in the order of frames, got others")
    return LoadedRun(
        path=path,
        setting=setting,
        env=config["settings"]["env"],
        seed=config["settings"]["seed"],
        finished=bool(read_summary(directory).get("finished")),
        frames=frames,
        steps=steps,
        seconds=seconds,
        returns=returns[known],
        config=config,
    )


def _place(run: LoadedRun) -> int:
    """The position of the run's variant in the suite file, whose order a report keeps."""
    plan = read_plan(run.path.parent)
    if plan is None or not (suite := run.path.parents[3] / SUITE_FILE).is_file():
        return 0
    variants = list(read_json(suite, "a suite file", {"variants": dict})["variants"])
    return variants.index(plan["variant"]) if plan["variant"] in variants else len(variants)


def name_settings(settings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return a short name for each setting, by its identity.

    A name has the settings that differ. A default is left out where several differ, unless nothing would be left. Replays
    are named by their types if that tells them apart. Where nothing differs, the name is the network.
    """
    different = {_identity(each): _compared(each) for each in settings}
    every = {name: None for each in different.values() for name in each}
    varying = [name for name in every if len({each[name] for each in different.values() if name in each}) > 1]
    types = {described: _types(described) for described in {each[REPLAYS] for each in different.values()}}
    alike = Counter(types.values())
    replays = {described: short if alike[short] == 1 else described for described, short in types.items()}
    plain = [name for name in varying if name != REPLAYS]
    names = {}
    for identity, each in different.items():
        parts = [replays[each[REPLAYS]]] if REPLAYS in varying else []
        parts += [
            _assigned(name, each[name])
            for name in plain
            if name in each and (len(plain) == 1 or each[name] != DEFAULTS.get(name))
        ]
        names[identity] = ", ".join(parts) or ("defaults" if varying else each["network"])
    return names


def _types(replays: str) -> str:
    """`queue 0.5 of 1 + standard 0.5 of 1,000` -> `queue + standard`."""
    return " + ".join(replay.split()[0] for replay in replays.split(" + "))


def _assigned(name: str, value: Any) -> str:
    """A setting as in a name: `lr=0.1`, and a switch that is on by its name alone."""
    return name if value is True else f"{name}={value}"


def _identity(settings: dict[str, Any]) -> str:
    return json.dumps(_compared(settings))


def _compared(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that runs of one setting share. Settings that an older version did not have get their defaults."""
    agent = agent_of(settings)
    # A user's agent is not imported: the file may be gone, and a run holds every setting.
    defaults = default_settings(agent) if agent in AGENTS else {**DEFAULTS, **settings}
    full = {**defaults, **settings}
    full[REPLAYS] = _describe(full[REPLAYS])
    return {name: full[name] for name in defaults if name not in NOT_COMPARED}


def _describe(replay_parameters: str) -> str:
    """`queue 0.5 of 1 + standard 0.5 of 1,000`: share and capacity, and values other than defaults in brackets."""
    described = []
    for replay in parse_replay_parameters(replay_parameters):
        extras = [
            f"{field.name}={getattr(replay, field.name)}"
            for field in fields(ReplayConfig)
            if field.name not in SAID and getattr(replay, field.name) != field.default
        ]
        described.append(
            f"{replay.type} {replay.sample_ratio:g} of {replay.capacity:,}" + (f" ({', '.join(extras)})" if extras else "")
        )
    return " + ".join(described)
