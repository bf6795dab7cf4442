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
    """Settings of one game, scores over seeds with their 95 % intervals; human-normalised where that is known."""
    columns = {
        "setting": [result.setting for result in game.results],
        "seeds": [str(len(result.runs)) for result in game.results],
        "return": [with_interval(result.score()) for result in game.results],
        "interquartile mean": [with_interval(result.score(interquartile_mean)) for result in game.results],
    }
    normalised = [game.normalised(result.score().value) for result in game.results]
    if None not in normalised:
        columns["human-normalised"] = [f"{score:.1f} %" for score in normalised]
    columns["mean over the run"] = [with_interval(estimate([result.areas], mean)) for result in game.results]
    if threshold is not None:
        columns[f"steps to {threshold:g}"] = [_steps(result) for result in game.results]
    columns["minutes"] = [f"{result.minutes.mean():.1f}" for result in game.results]
    return Table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _steps(result: Result) -> str:
    """`12,345 (3 of 3)`: median, and how many runs got there; no median where half of them did not."""
    steps, reached = median_steps(result)
    return f"{f'{steps:,.0f}' if math.isfinite(steps) else '-'} ({reached} of {len(result.runs)})"


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
