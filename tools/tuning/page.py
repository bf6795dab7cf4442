"""The page of a study: the scores of its trials in order, the settings that mattered, and the score against each setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setting import Log, OneOf
from tools.page import bullets, heading, html_table, page, paragraph, picture
from tools.tables import Table
from tools.tuning.ranges import described
from tools.tuning.study import COMPLETE, FAILED, MARKS, PAGE, PRUNED, RUNNING, StudyPlan, Trial, best_of, shown

COLOURS = {COMPLETE: "#00695c", PRUNED: "#b0b0b0", RUNNING: "#e69f00", FAILED: "#d55e00"}
WIDTH, HEIGHT = 9.0, 3.2  # inches


def write_page(study: StudyPlan, trials: Sequence[Trial], importances: Mapping[str, float]) -> None:
    """Write report.html. importances: the part of the variance of scores that each setting explains; empty if unknown."""
    with TemporaryDirectory() as folder:
        parts = list(_parts(study, trials, importances, Path(folder)))
    (study.folder / PAGE).write_text(page(f"Study {study.name}", parts))


def _parts(study: StudyPlan, trials: Sequence[Trial], importances: Mapping[str, float], folder: Path) -> list[str]:
    best = best_of(trials)
    seeds = "one run each" if study.tuning.method == "pbt" else f"mean of {study.tuning.trial_seeds} seeds"
    about = [f"{study.env}, agent {study.agent}, score: last {study.score}, {seeds}."]
    if best:
        about.append(f"Best: {best.score:.2f} with {best.text}, trial {best.number}.")
    parts = [bullets(about)]
    scored = [trial for trial in trials if trial.score is not None]
    if scored:
        parts += [
            heading("History"),
            _drawn(folder / "history.png", "Score of each trial, and the best so far", _history(scored)),
        ]
        curves = _drawn(folder / "curves.png", "Score of each trial over its runs", _curves(study, scored))
        parts += [heading("Curves"), curves]
    if importances:
        drawn = _drawn(folder / "importances.png", "Importance of each setting", _importances(importances))
        parts += [
            heading("Importances"),
            drawn,
            paragraph("Part of the variance of scores that a setting explains (PED-ANOVA)."),
        ]
    if scored:
        drawn = _drawn(folder / "slices.png", "Score against each setting", _slices(study, scored), len(study.ranges))
        parts += [heading("Slices"), drawn]
    return [*parts, heading("Trials"), html_table(trials_table(study, trials))]


def trials_table(study: StudyPlan, trials: Sequence[Trial]) -> Table:
    """All trials, the best first."""
    ordered = sorted(trials, key=lambda trial: (trial.state != COMPLETE, -(trial.score if trial.score is not None else -1e300)))
    rows = [
        [
            str(trial.number),
            trial.state,
            "" if trial.score is None else f"{trial.score:.2f}",
            *map(shown, trial.settings.values()),
            trial.reason,
        ]
        for trial in ordered
    ]
    return Table(["trial", "state", "score", *study.ranges, "why it ended"], rows)


def _drawn(path: Path, description: str, draw: Callable[[Any], None], panels: int = 1) -> str:
    """A picture as a part of the page. draw: gets a figure."""
    # Not pyplot, which keeps every figure in global state and may look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * -(-panels // 3)), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    figure.savefig(path, dpi=100)
    return picture(path, description)


def _history(trials: Sequence[Trial]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for state, colour in COLOURS.items():
            chosen = [trial for trial in trials if trial.state == state]
            axis.plot([each.number for each in chosen], [each.score for each in chosen], "o", color=colour, label=state)
        complete = [trial for trial in trials if trial.state == COMPLETE]
        best = [max(each.score or 0.0 for each in complete[: count + 1]) for count in range(len(complete))]
        axis.step([each.number for each in complete], best, where="post", color=COLOURS[COMPLETE], label="best so far")
        axis.set_xlabel("trial")
        axis.set_ylabel("score")
        axis.legend()

    return draw


def _curves(study: StudyPlan, trials: Sequence[Trial]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for trial in trials:
            marks = sorted(trial.curve)
            axis.plot([mark / MARKS for mark in marks], [trial.curve[mark] for mark in marks], color=COLOURS[trial.state])
        axis.set_xlabel("run" if study.tuning.trial_seeds == 1 else "runs, one after another")
        axis.set_ylabel("score")

    return draw


def _importances(importances: Mapping[str, float]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        names = list(importances)[::-1]
        axis.barh(names, [importances[name] for name in names], color=COLOURS[COMPLETE])

    return draw


def _slices(study: StudyPlan, trials: Sequence[Trial]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        rows = -(-len(study.ranges) // 3)
        axes = figure.subplots(rows, min(3, len(study.ranges)), squeeze=False, sharey=True).flat
        for axis, (name, search) in zip(axes, study.ranges.items(), strict=False):
            for state, colour in COLOURS.items():
                chosen = [trial for trial in trials if trial.state == state]
                values = [each.settings[name] for each in chosen]
                places = [str(value) for value in values] if isinstance(search, OneOf) else values
                axis.plot(places, [each.score for each in chosen], "o", color=colour)
            if isinstance(search, Log):
                axis.set_xscale("log")
            axis.set_xlabel(name)
            axis.set_title(described(search), fontsize="small")

    return draw
