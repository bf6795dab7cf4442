"""The content of a report: for each game and setting, the scores over seeds at the same number of frames."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learner.evaluation.reference_scores import human_normalised, reference_scores
from tools.aggregates import (
    Estimate,
    Statistic,
    area_under_curve,
    estimate,
    first_reached,
    interquartile_mean,
    mean,
)
from tools.runs import LoadedRun
from wrappers import atari

PUBLISHED_FILE = Path(__file__).with_name("published.json")
LENGTH_TOLERANCE = 0.01  # relative; a run ends up to one batch after its budget


@dataclass(frozen=True)
class Result:
    """One setting on one game. All arrays are `[runs]`, in the order of `runs`, and taken at `Game.horizon`.

    scores: mean raw return of the last training episodes. areas: mean of the learning curve from the first frame on.
    steps_to_threshold: infinite if never reached; empty if there is no threshold.
    """

    setting: str
    runs: list[LoadedRun]
    scores: np.ndarray
    areas: np.ndarray
    minutes: np.ndarray
    steps_to_threshold: np.ndarray

    def score(self, statistic: Statistic = mean) -> Estimate:
        """Return a statistic of the scores with its interval."""
        return estimate([self.scores], statistic)


@dataclass(frozen=True)
class Game:
    """All results on one environment. horizon: frames at which its runs are compared, where the shortest run ends."""

    env: str
    horizon: float
    results: list[Result]

    @property
    def unit(self) -> str:
        """The name of what is counted as frames: steps where a step is one frame."""
        runs = [run for result in self.results for run in result.runs]
        return "steps" if all(np.array_equal(run.frames, run.steps) for run in runs) else "emulator frames"

    def normalised(self, score: float) -> float | None:
        """Return the human-normalised score in per cent, None if no human score of the game is known."""
        return human_normalised(self.env, score)


@dataclass(frozen=True)
class Published:
    """A score from the literature. normalised: human-normalised, in per cent."""

    agent: str
    score: float
    normalised: float | None
    frames: float
    protocol: str
    source: str


def choose_runs(runs: Sequence[LoadedRun], *, with_unfinished: bool) -> tuple[list[LoadedRun], list[str]]:
    """Return the runs that can be compared, and one line for each run that is left out or unfinished.

    Raises ValueError if no run can be compared.
    """
    chosen, notes = [], []
    for run in runs:
        label = f"{run.env}, {run.setting}, seed {run.seed}"
        if not len(run.returns):
            notes.append(f"Left out, no episode has ended: {label} ({run.path.name})")
        elif not run.finished and not with_unfinished:
            notes.append(f"Left out, unfinished at {run.frames[-1]:,.0f} frames: {label} ({run.path.name})")
        else:
            chosen.append(run)
            if not run.finished:
                notes.append(f"Unfinished, used up to {run.frames[-1]:,.0f} frames: {label} ({run.path.name})")
    if not chosen:
        hint = "" if with_unfinished else "; --unfinished includes unfinished runs"
        raise ValueError(f"wanted at least one finished run with an ended episode, got {len(runs)} other runs{hint}")
    return chosen, notes


def compare(runs: Sequence[LoadedRun], threshold: float | None) -> list[Game]:
    """Group runs by game and setting, both in order of first appearance. threshold: a return, None for none."""
    return [_compare_game(env, [run for run in runs if run.env == env], threshold) for env in _unique(run.env for run in runs)]


def _compare_game(env: str, runs: list[LoadedRun], threshold: float | None) -> Game:
    horizon = float(min(run.frames[-1] for run in runs))
    results = []
    for setting in _unique(run.setting for run in runs):
        of_setting = [run for run in runs if run.setting == setting]
        results.append(
            Result(
                setting=setting,
                runs=of_setting,
                scores=np.array([np.interp(horizon, run.frames, run.returns) for run in of_setting]),
                areas=np.array([area_under_curve(run.frames, run.returns, horizon) for run in of_setting]),
                minutes=np.array([np.interp(horizon, run.frames, run.seconds) / 60 for run in of_setting]),
                steps_to_threshold=np.array(
                    [] if threshold is None else [_steps_to(run, threshold, horizon) for run in of_setting]
                ),
            )
        )
    return Game(env, horizon, results)


def _steps_to(run: LoadedRun, threshold: float, horizon: float) -> float:
    inside = run.frames <= horizon
    return first_reached(run.steps[inside], run.returns[inside], threshold)


def notes_on(games: Sequence[Game]) -> list[str]:
    """Return one line for each difference between the runs that affects how they compare."""
    notes = []
    for game in games:
        runs = [run for result in game.results for run in result.runs]
        longest = max(run.frames[-1] for run in runs)
        if longest > game.horizon * (1 + LENGTH_TOLERANCE):
            notes.append(
                f"{game.env}: runs have up to {longest:,.0f} frames; all are compared at {game.horizon:,.0f} frames, where the "
                f"shortest run ends"
            )
        counts = {len(result.runs) for result in game.results}
        if min(counts) < 2:
            notes.append(f"{game.env}: a setting with a single seed has no interval")
        if len(counts) > 1:
            notes.append(f"{game.env}: settings have different numbers of seeds")
        for result in game.results:
            seeds = [run.seed for run in result.runs]
            if len(set(seeds)) < len(seeds):
                notes.append(f"{game.env}, {result.setting}: several runs have the same seed")
    every = [run for game in games for result in game.results for run in result.runs]
    for what, values in (
        ("commits", {str(run.config.get("git_commit")) for run in every}),
        ("machines", {json.dumps(run.config.get("host"), sort_keys=True) for run in every}),
        ("windows of the mean return (return_window)", {str(run.config["settings"].get("return_window")) for run in every}),
    ):
        if len(values) > 1:
            notes.append(f"The runs have {len(values)} different {what}")
    return notes


@dataclass(frozen=True)
class Overall:
    """One setting over several games. mean, interquartile_mean: of human-normalised scores, in per cent."""

    setting: str
    games: int
    runs: int
    mean: Estimate
    interquartile_mean: Estimate


def over_games(games: Sequence[Game]) -> list[Overall]:
    """Return the settings that were run on every game with known human scores; [] if there are fewer than two such games."""
    known = [game for game in games if reference_scores(game.env)]
    if len(known) < 2:
        return []
    overall = []
    for setting in _unique(result.setting for game in known for result in game.results):
        strata = [
            np.array([human_normalised(game.env, score) for score in result.scores], np.float64)
            for game in known
            for result in game.results
            if result.setting == setting
        ]
        if len(strata) == len(known):
            runs = sum(map(len, strata))
            overall.append(Overall(setting, len(strata), runs, estimate(strata, mean), estimate(strata, interquartile_mean)))
    return overall


def published_scores(env: str) -> list[Published]:
    """Return scores from the literature for the game of an environment id."""
    if not atari.matches(env):
        return []
    rom = atari.rom_of(env)
    rows: list[dict[str, Any]] = json.loads(PUBLISHED_FILE.read_text())
    return [
        Published(
            row["agent"],
            row["scores"][rom],
            human_normalised(env, row["scores"][rom]),
            row["frames"],
            row["protocol"],
            row["source"],
        )
        for row in rows
        if rom in row["scores"]
    ]


def median_steps(result: Result) -> tuple[float, int]:
    """Return the median steps to the threshold over all runs, and how many reached it.

    The median is infinite if half of the runs never reached the threshold.
    """
    steps = result.steps_to_threshold
    return float(np.quantile(steps, 0.5, method="higher")), sum(math.isfinite(each) for each in steps)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
