"""A suite file, the runs that it plans, and their progress.

A suite is the product of settings, environments and seeds. Its folder has one folder per run, `<env>/<variant>/seed_<seed>/`,
with plan.json (the settings), console.txt (the program's output) and the program's run directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checked_files import read_json
from learner import launch
from learner.runs.directory import RunDirectory
from learner.settings.check import find_setting
from learner.settings.config import Settings
from learner.settings.other_names import rename_settings
from learner.settings.schema import agent_of
from setting import AUTO
from tools.summary import read_config, read_summary
from tools.termination import REPOSITORY
from workers.minari_import import PREFIX

PLAN_FILE = "plan.json"
PLAN_KEYS = {"suite": str, "variant": str, "env": str, "seed": int, "settings": dict}
SUITE_FILE = "suite.json"
KEYS = {"name", "about", "common", "variants", "envs", "seeds"}
REQUIRED = ("name", "variants", "envs", "seeds")
SET_BY_SUITE = ("env", "seed", "results_dir", "load", "load_optimizer")
RUN_NAME = re.compile(r".+_(\d+)", re.ASCII)  # <env>_<unix_timestamp>
FOLDER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Suite:
    """Every variant runs on every env with every seed. variants: name -> settings of main.py, including the common ones."""

    name: str
    about: str
    variants: dict[str, Settings]
    envs: list[str]
    seeds: list[int]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a suite. settings: of its variant. folder: for everything of this run."""

    suite: str
    variant: str
    env: str
    seed: int
    settings: Settings
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.env}, {self.variant}, seed {self.seed}"

    def run(self) -> RunDirectory | None:
        """Return the newest run directory of this plan, None before the first one."""
        return newest_run(self.folder)

    def summary(self) -> dict[str, Any]:
        """Return the summary of the newest run, or {} if that run has not ended."""
        run = self.run()
        return read_summary(run) if run else {}

    def is_finished(self) -> bool:
        return bool(self.summary().get("finished"))

    def arguments(self, here: Path = REPOSITORY) -> list[str]:
        """Return the arguments of main.py, which resume from the newest checkpoint if there is one.

        here: the folder in which main.py will run.
        """
        run = self.run()
        given = {"env": self.env, "seed": self.seed, **self.settings, "results_dir": _seen_from(here, self.folder)}
        flags = [f"--{name}={value}" for name, value in given.items()]
        if run and run.checkpoint_paths():
            return ["--op_mode=train_w_load", f"--load={_seen_from(here, run.path)}", *flags]
        return ["--op_mode=train", *flags]

    def write(self) -> None:
        """Make the folder and write plan.json. Raises ValueError if a run with other settings has started there."""
        self.check_begun()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / PLAN_FILE).write_text(json.dumps(self._content(), indent=2) + "\n")

    def check_begun(self) -> None:
        """Raise ValueError if a run of another plan, or with other settings than its plan, has started in the folder."""
        if (run := self.run()) is None:
            return
        begun = read_plan(self.folder) or self._content()
        self._check_same({**begun, **begun["settings"]}, {**self._content(), **self.settings})
        settings = read_config(run, {"env": str, "seed": int})["settings"]
        given = {"env": self.env, "seed": self.seed, **self.settings}
        # The program replaces these values by those that it finds.
        kept = {name: value for name, value in given.items() if value != AUTO and not str(value).startswith(PREFIX)}
        self._check_same({name: settings.get(name, value) for name, value in kept.items()}, kept)

    def _check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        names = sorted({*before, *now} - {"settings"})
        if changed := [name for name in names if before.get(name) != now.get(name)]:
            name = changed[0]
            raise ValueError(
                f"{self.folder}: wanted {name}={before.get(name)!r}, with which this run started, got {now.get(name)!r}; "
                "rename the suite or remove the folder"
            )

    def _content(self) -> dict[str, Any]:
        names = ("suite", "variant", "env", "seed", "settings")
        return {name: getattr(self, name) for name in names}


def newest_run(folder: Path) -> RunDirectory | None:
    """Return the run directory in `folder` with the latest timestamp in its name, None if there is none.

    Links, and copies that were given other names, are not considered.
    """
    stamps = {
        path.parent: int(name[1])
        for path in folder.glob("*/config.json")
        if (name := RUN_NAME.fullmatch(path.parent.name)) and not path.parent.is_symlink()
    }
    return RunDirectory(max(stamps, key=stamps.__getitem__)) if stamps else None


def read_plan(folder: Path) -> dict[str, Any] | None:
    """Return the content of plan.json, None if the folder belongs to no suite. Raises ValueError in one line."""
    path = folder / PLAN_FILE
    if not path.is_file():
        return None
    plan = read_json(path, "the plan of a run", PLAN_KEYS)
    return {**plan, "settings": rename_settings(plan["settings"])}


def plan_runs(suite: Suite, folder: Path) -> list[PlannedRun]:
    """Return all runs of the suite: all variants with one seed before the next seed, so that partial results compare fairly."""
    return [
        PlannedRun(
            suite.name, variant, env, seed, settings, folder / _folder_name(env) / _folder_name(variant) / f"seed_{seed}"
        )
        for env in suite.envs
        for seed in suite.seeds
        for variant, settings in suite.variants.items()
    ]


def read_suite(path: Path) -> Suite:
    """Read and check a suite file. Raises ValueError in one line."""
    content = read_json(path, "a suite file")
    if unknown := sorted(set(content) - KEYS):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    if missing := [key for key in REQUIRED if key not in content]:
        raise ValueError(f"{path}: {missing[0]!r} is missing")
    name = content["name"]
    if not isinstance(name, str) or not FOLDER_NAME.fullmatch(name):
        raise ValueError(f"{path}: name: wanted letters, digits, _, - and . for a folder's name, got {name!r}")
    suite = Suite(
        name=name,
        about=str(content.get("about", "")),
        variants=_read_variants(path, content.get("common", {}), content["variants"]),
        envs=_read_list(path, content, "envs", str, "environment ids"),
        seeds=_read_list(path, content, "seeds", int, "whole numbers"),
    )
    _check_folders(path, "envs", suite.envs)
    for seed in suite.seeds:
        find_setting("seed").check(seed)
    return suite


def check_suite(suite: Suite, folder: Path) -> None:
    """Check every combination as main.py would, before any run starts. Raises ValueError in one line."""
    for env in suite.envs:
        for variant, settings in suite.variants.items():
            given = {**settings, "env": env, "seed": suite.seeds[0], "results_dir": str(folder), "preflight": False}
            try:
                launch.prepare("train", given, [])
            except ValueError as error:
                raise ValueError(f"{env:.80}, {variant:.80}: {error}") from None
    for plan in plan_runs(suite, folder):
        plan.check_begun()


def _read_variants(path: Path, common: object, variants: object) -> dict[str, Settings]:
    if not isinstance(variants, dict) or not variants:
        raise ValueError(f"{path}: variants: wanted an object from names to settings, got {variants!r:.80}")
    shared = _read_settings(f"{path}: common", common, {})
    read = {name: _read_settings(f"{path}: variants: {name}", given, shared) for name, given in variants.items()}
    _check_folders(path, "variants", read)
    return read


def _check_folders(path: Path, key: str, names: Iterable[str]) -> None:
    """Raise ValueError in one line if a name gives no folder, or the same as another one, whose runs would count as its own."""
    folders: dict[str, str] = {}
    for name in names:
        folder = _folder_name(name).lower()  # some file systems do not tell capitals from small letters
        if not folder or folder in folders:
            reason = f"shares the folder {folder!r} with {folders[folder]!r}" if folder else "gives an empty folder name"
            raise ValueError(f"{path}: {key}: wanted names that differ in letters or digits, got {name!r}, which {reason}")
        folders[folder] = name


def _read_settings(where: str, given: object, shared: Settings) -> Settings:
    """The shared settings and, on top of them, those that a suite file gives. A list, as of replays, may stay a list."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: wanted an object of settings, got {given!r:.80}")
    try:
        settings = rename_settings(
            {name: json.dumps(value) if isinstance(value, list) else value for name, value in given.items()}
        )
        if set_by_suite := [name for name in settings if name in SET_BY_SUITE]:
            raise ValueError(f"wanted no {set_by_suite[0]}, because the suite sets it, got {settings[set_by_suite[0]]!r:.80}")
        settings = {**shared, **settings}
        for name, value in settings.items():
            find_setting(name, agent_of(settings)).check(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return settings


def _read_list(path: Path, content: Mapping[str, Any], key: str, kind: type, what: str) -> list[Any]:
    values: list[Any] = content[key]
    right = isinstance(values, list) and values and all(type(value) is kind for value in values)
    if not right or len(set(values)) < len(values):
        raise ValueError(f"{path}: {key}: wanted a list of different {what}, got {values!r:.80}")
    return values


def _folder_name(name: str) -> str:
    """`queue + standard` -> `queue_standard`. A name of dots alone would lead out of the suite's folder."""
    return "_".join(re.findall(r"[A-Za-z0-9.-]+", name)).strip(".")


def _seen_from(here: Path, path: Path) -> str:
    """The path as seen from a folder, if it lies in it."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
