"""The results of test mode: summary statistics, a printed table and a JSON file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.evaluation.reference_scores import SOURCE, human_normalised, mean_human_normalised, reference_scores
from learner.metrics.infos import PREFIX, success_rate

Summary = dict[str, float | int | None]


def summarise(episodes: list[dict[str, Any]], env_id: str) -> Summary:
    """Statistics of one episode or more, each with "return", "length" (steps) and "truncated".

    standard_error is that of the mean, None for a single episode. human_normalised is in per cent. It is None, as are
    random_return and human_return, if the game has no published scores.
    """
    returns = np.array([episode["return"] for episode in episodes], dtype=np.float64)
    mean, count = float(returns.mean()), len(returns)
    reference = reference_scores(env_id)
    return {
        "episodes": count,
        "mean_return": mean,
        "median_return": float(np.median(returns)),
        "standard_error": float(returns.std(ddof=1)) / math.sqrt(count) if count > 1 else None,
        "min_return": float(np.min(returns)),
        "max_return": float(np.max(returns)),
        "mean_length": float(np.mean([episode["length"] for episode in episodes])),
        "truncated_episodes": sum(episode["truncated"] for episode in episodes),
        "human_normalised": human_normalised(env_id, mean),
        "random_return": reference.random if reference else None,
        "human_return": reference.human if reference else None,
    }


def table(summary: Summary, env_id: str) -> list[str]:
    """The summary as lines of text, with the published scores of random play and of a human if there are any."""
    columns = {
        "mean": _number(summary["mean_return"]),
        "std. error": _number(summary["standard_error"]),
        "median": _number(summary["median_return"]),
        "min": _number(summary["min_return"]),
        "max": _number(summary["max_return"]),
        "mean steps": _number(summary["mean_length"], 1),
        "episodes": f"{summary['episodes']:,}",
    }
    widths = {name: max(10, len(name), len(text)) for name, text in columns.items()}
    lines = [
        "return  " + " ".join(f"{name:>{widths[name]}}" for name in columns),
        "agent   " + " ".join(f"{text:>{widths[name]}}" for name, text in columns.items()),
    ]
    if summary["truncated_episodes"]:
        lines.append(f"Episodes truncated by the time limit: {summary['truncated_episodes']:,}")
    random, human = summary["random_return"], summary["human_return"]
    if random is None or human is None:
        return [*lines, f"There are no published scores of random play and of a human for {env_id}."]
    mean = _number(summary["mean_return"])
    return [
        *lines,
        f"random  {_number(random):>{widths['mean']}}",
        f"human   {_number(human):>{widths['mean']}}",
        f"Human-normalised: {summary['human_normalised']:.1f} % "
        f"= 100 * ({mean} - {_number(random)}) / ({_number(human)} - {_number(random)}); random and human: {SOURCE}",
    ]


def mean_of_tasks(summaries: Mapping[str, Summary]) -> float | None:
    """The mean human-normalised score of several environments, in per cent; None if one has no published scores."""
    return mean_human_normalised({task: float(summary["mean_return"] or 0.0) for task, summary in summaries.items()})


def task_table(summaries: Mapping[str, Summary]) -> list[str]:
    """A line for each of several environments, and their mean human-normalised score if they have published scores."""
    width = max(len(task) for task in summaries)
    lines = [
        f"{'return':<{width}} {'mean':>10} {'std. error':>10} {'episodes':>10} {'random':>10} {'human':>10} {'normalised':>10}"
    ]
    for task, summary in summaries.items():
        numbers = [_number(summary[name]) for name in ("mean_return", "standard_error")]
        numbers += [f"{summary['episodes']:,}", *(_number(summary[name]) for name in ("random_return", "human_return"))]
        score = summary["human_normalised"]
        numbers.append("-" if score is None else f"{score:.1f} %")
        lines.append(f"{task:<{width}} {' '.join(f'{number:>10}' for number in numbers)}")
    mean = mean_of_tasks(summaries)
    return lines if mean is None else [*lines, f"Mean human-normalised: {mean:.1f} %; random and human: {SOURCE}"]


def info_lines(infos: Mapping[str, float]) -> list[str]:
    """Lines of text with `NAME_at_end` and `NAME_mean` of the numbers in infos, see `learner.metrics.infos`."""
    lines = [f"{PREFIX}{name}  {value:,.4g}" for name, value in infos.items()]
    rate = success_rate(infos)
    return lines if rate is None else [*lines, f"Success rate: {100 * rate:.1f} %"]


def write_results(folder: Path, update: int, content: dict[str, Any], kind: str = "evaluation") -> Path:
    """Write `<kind>_<update>_<unix time>.json` and return its path. Raises OSError, and then no file is left.

    If a file of that name exists, the next free second is used. An older result is never replaced.
    """
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    stamp = int(time.time())
    while True:
        path = folder / f"{kind}_{update}_{stamp}.json"
        try:
            # Mode x checks and creates in one step, so two commands never take the same name.
            file = path.open("x")
        except FileExistsError:
            stamp += 1
            continue
        try:
            with file:
                file.write(text)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path


def _number(value: float | None, decimals: int = 2) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"
