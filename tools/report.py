"""Compares runs: curves and scores over seeds with intervals, as Markdown, pictures and one HTML page.

    python -m tools.report results/replay_catch
    python -m tools.report results/PongNoFrameskip-v4_* --threshold=0

The arguments are run directories, or folders with run directories below them, such as that of a suite. Runs of a suite
are grouped by its variants, other runs by equal settings. A score is the mean raw return of the last `--return_window`
training episodes. All settings of a game are compared at the same number of frames. The Markdown goes to standard
output.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from checked_files import plain_name
from tools.aggregates import RESAMPLES
from tools.comparison import Game, Overall, choose_runs, compare, notes_on, over_games
from tools.page import bullets, folded, heading, html_table, page, paragraph, picture
from tools.pictures import draw_curves, draw_overall, draw_scores
from tools.runs import LoadedRun, find_runs, load_runs
from tools.tables import Table, game_table, markdown, overall_table, published_table
from tools.termination import end_with

HOW_TO_READ = (
    "Return: mean raw return of the last training episodes, averaged over seeds, with its 95 % bootstrap interval over seeds "
    f"in brackets ({RESAMPLES:,} seeded resamples). With three seeds the interval is little more than their range. "
    "Interquartile mean: mean of the middle half of all runs (arXiv 2108.13264); with fewer than four runs it is the mean. "
    "Mean over the run: area under the learning curve by frames, divided by its length; higher is more sample-efficient. "
    "Steps to a threshold: median over seeds, and the number of runs that reached it. Minutes: mean wall time up to the "
    "compared frame."
)


def write_report(paths: Sequence[Path], out: Path, threshold: float | None, *, with_unfinished: bool) -> str:
    """Write pictures and report.html into `out` and return the Markdown. Raises ValueError in one line.

    Args:
        paths: run directories, or folders with run directories below them.
        out: folder, which is made if necessary.
        threshold: return to which steps are counted, or None.
        with_unfinished: whether to include unfinished runs.
    """
    chosen, notes = choose_runs(load_runs(find_runs(paths)), with_unfinished=with_unfinished)
    games = compare(chosen, threshold)
    overall = over_games(games)
    notes += notes_on(games)
    out.mkdir(parents=True, exist_ok=True)
    parts = [paragraph(f"{len(chosen)} runs. {HOW_TO_READ}"), bullets(notes)]
    text = []
    if overall:
        parts += _overall_part(overall, out)
        text += ["### All games, human-normalised", markdown(overall_table(overall))]
    for game in games:
        parts += _game_part(game, out, threshold)
        text += [f"### {_title(game)}", markdown(game_table(game, threshold))]
        if (published := published_table(game)).rows:
            text.append(markdown(published))
    parts += [
        heading("Versions and machines"),
        bullets(_circumstances(chosen)),
        folded("All runs", html_table(_runs_table(chosen))),
    ]
    (out / "report.html").write_text(page(f"Comparison: {', '.join(game.env for game in games)}", parts))
    if notes:
        text.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(text)


def _title(game: Game) -> str:
    return f"{game.env} at {game.horizon:,.0f} {game.unit}"


def _overall_part(overall: list[Overall], out: Path) -> list[str]:
    draw_overall(overall, out / "all_games.png")
    return [
        heading("All games, human-normalised"),
        html_table(overall_table(overall)),
        picture(out / "all_games.png", "Interquartile mean of every setting with its interval"),
    ]


def _game_part(game: Game, out: Path, threshold: float | None) -> list[str]:
    stem = plain_name(game.env)
    curves, scores = out / f"{stem}_curves.png", out / f"{stem}_scores.png"
    draw_curves(game, curves, threshold)
    draw_scores(game, scores)
    parts = [
        heading(_title(game)),
        html_table(game_table(game, threshold)),
        picture(curves, f"{game.env}: return against {game.unit} and wall time, mean over seeds with interval"),
        picture(scores, f"{game.env}: score of every seed, mean and interval of every setting"),
    ]
    if (published := published_table(game)).rows:
        parts += [paragraph("Published scores, under other protocols and budgets:"), html_table(published)]
    return parts


def _circumstances(runs: Sequence[LoadedRun]) -> list[str]:
    """Lines with commits, machines and versions, each with its number of runs."""
    lines: Counter[str] = Counter()
    for run in runs:
        host, versions = run.config.get("host", {}), run.config.get("versions", {})
        machine = (
            f"{host.get('cores', '?')} cores, {host.get('system', '?')}, learner on {run.config['settings'].get('device', '?')}"
        )
        known = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "ale-py") if name in versions)
        lines.update([f"Commit: {run.config.get('git_commit')}", f"Machine: {machine}", f"Versions: {known}"])
    return [f"{line} ({count} run{'s' * (count > 1)})" for line, count in sorted(lines.items())]


def _runs_table(runs: Sequence[LoadedRun]) -> Table:
    rows = [
        [run.env, run.setting, str(run.seed), run.path.name, f"python {shlex.join(map(str, run.config.get('command', [])))}"]
        for run in runs
    ]
    return Table(["game", "setting", "seed", "run", "last command"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or folders with run directories below them")
    parser.add_argument("--out", type=Path, help="folder for report.html and the pictures (default: report/ in the first path)")
    parser.add_argument("--threshold", type=float, help="return to which steps are counted")
    parser.add_argument("--unfinished", action="store_true", help="include unfinished runs, up to their last row of metrics")
    options = parser.parse_args(arguments)
    if options.threshold is not None and not math.isfinite(options.threshold):
        parser.error(f"--threshold: wanted a finite number, got {options.threshold}")
    out = options.out or options.runs[0] / "report"
    try:
        print(write_report(options.runs, out, options.threshold, with_unfinished=options.unfinished))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"Report: {out / 'report.html'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    end_with(main)
