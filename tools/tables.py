"""The tables of a report as rows of text, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tools.aggregates import Estimate, estimate, interquartile_mean, mean
from tools.comparison import Game, Overall, Result, median_steps, published_scores


class Table(NamedTuple):
    """header `[columns]` and rows of as many cells."""

    header: list[str]
    rows: list[list[str]]


def game_table(game: Game, threshold: float | None) -> Table:
    """Return a row per setting of a game: scores over seeds with 95 % intervals, human-normalised if that is known."""
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
    """`12,345 (3 of 3)`: median steps, and the number of runs that reached the threshold; `-` if half did not."""
    steps, reached = median_steps(result)
    return f"{f'{steps:,.0f}' if math.isfinite(steps) else '-'} ({reached} of {len(result.runs)})"


def overall_table(overall: Sequence[Overall]) -> Table:
    """Return a row per setting with human-normalised scores over all games, in per cent."""
    return Table(
        ["setting", "games", "runs", "interquartile mean, %", "mean, %"],
        [
            [each.setting, str(each.games), str(each.runs), with_interval(each.interquartile_mean), with_interval(each.mean)]
            for each in overall
        ],
    )


def published_table(game: Game) -> Table:
    """Return a row per published score of the game."""
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
    """Return `1.50 [1.20, 1.70]`, or the number alone if it has no interval."""
    shown = number(value.value)
    return shown if math.isnan(value.low) else f"{shown} [{number(value.low)}, {number(value.high)}]"


def number(value: float) -> str:
    """Return a number with two decimals below a thousand, otherwise without decimals."""
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def markdown(table: Table) -> str:
    """Return a Markdown table. Bars inside cells are escaped."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
