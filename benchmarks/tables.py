"""The tables of a report as rows of text, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.aggregates import Estimate, estimate, interquartile_mean, mean
from benchmarks.comparison import Game, Overall, Result, median_steps, published_scores


class Table(NamedTuple):
    """header `[columns]` and rows of as many cells."""

    header: list[str]
    rows: list[list[str]]


def game_table(game: Game, threshold: float | None) -> Table:
    """Settings of one game, scores over seeds with their 95 % intervals."""
    header = ["setting", "seeds", "return", "interquartile mean", "human-normalised", "mean over the run"]
    if threshold is not None:
        header.append(f"steps to {threshold:g}")
    return Table([*header, "minutes"], [_game_row(game, result, threshold) for result in game.results])


def _game_row(game: Game, result: Result, threshold: float | None) -> list[str]:
    score = result.score()
    normalised = game.normalised(score.value)
    row = [
        result.setting,
        str(len(result.runs)),
        with_interval(score),
        with_interval(result.score(interquartile_mean)),
        "-" if normalised is None else f"{normalised:.1f} %",
        with_interval(estimate([result.areas], mean)),
    ]
    if threshold is not None:
        steps, reached = median_steps(result)
        row.append(
            f"{steps:,.0f} ({reached} of {len(result.runs)})"
            if math.isfinite(steps)
            else f"- ({reached} of {len(result.runs)})"
        )
    return [*row, f"{result.minutes.mean():.1f}"]


def overall_table(overall: Sequence[Overall]) -> Table:
    """Settings over all games, in per cent human-normalised."""
    return Table(
        ["setting", "games", "runs", "interquartile mean, %", "mean, %"],
        [
            [each.setting, str(each.games), str(each.runs), with_interval(each.interquartile_mean), with_interval(each.mean)]
            for each in overall
        ],
    )


def published_table(game: Game) -> Table:
    """What others report for this game; no rows where nothing is known."""
    return Table(
        ["published agent", "return", "human-normalised", "frames", "protocol", "source"],
        [
            [
                each.agent,
                number(each.score),
                "-" if each.normalised is None else f"{each.normalised:.1f} %",
                f"{each.frames / 1e6:,.0f} million",
                each.protocol,
                each.source,
            ]
            for each in published_scores(game.env)
        ],
    )


def with_interval(value: Estimate) -> str:
    """`1.50 [1.20, 1.70]`, the number alone where it has no interval."""
    shown = number(value.value)
    return shown if math.isnan(value.low) else f"{shown} [{number(value.low)}, {number(value.high)}]"


def number(value: float) -> str:
    """Two decimals below a thousand, none above."""
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def markdown(table: Table) -> str:
    """A Markdown table; a bar within a cell is written so that it does not end the cell."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
