"""The end of a run: summary.json, the learning curve, and the closing lines of the log."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checked_files import checked
from learner.metrics.bottleneck import Bottleneck
from learner.metrics.curve import draw_learning_curve
from learner.metrics.infos import PREFIX, success_rate
from learner.metrics.progress import format_duration, steps_and_frames
from learner.metrics.statistics import ReturnStatistics
from learner.runs.checkpoint import Counters
from learner.runs.directory import RunDirectory, shell_name_of_program
from learner.settings.config import Config

log = logging.getLogger("springbok")

EVALUATION = {"update": int, "mean_return": float, "protocol": dict}
"""Keys of a line of evaluations.jsonl that are relied on."""


def write_summary(
    run: RunDirectory,
    config: Config,
    counters: Counters,
    episodes: ReturnStatistics,
    *,
    checkpoint: Path | None,
    interrupted: bool,
) -> bool:
    """Write summary.json and the learning curve. Returns whether there is a curve; a failure is one warning.

    Args:
        run: directory of the run.
        config: of the run.
        counters: how far the run has come.
        episodes: returns of its episodes.
        checkpoint: the last one, None if it could not be saved.
        interrupted: whether the run was asked to stop before its budget was used.
    """
    summary = {
        "env": config.env.env,
        **asdict(counters),
        "mean_return": episodes.mean_return,
        "episodes_in_mean": len(episodes.recent),
        **({"mean_return_of_tasks": episodes.task_means} if episodes.task_means else {}),
        "success_rate": success_rate(episodes.infos.at_end),
        "info": {f"{PREFIX}{name}": value for name, value in episodes.infos.at_end.items()},
        "frames_per_second": counters.frames / counters.seconds if counters.seconds else 0.0,
        "finished": not interrupted,
        "checkpoint": checkpoint.name if checkpoint else None,
    }
    title = f"{config.env.env}, {config.network}, seed {config.training.seed}"
    try:
        run.summary.write_text(json.dumps({**summary, **_evaluated(run, counters)}, indent=2) + "\n")
        return run.metrics.is_file() and draw_learning_curve(run.metrics, run.curve, title)
    except (OSError, ValueError) as error:  # or a metrics.csv that was damaged meanwhile
        log.warning("Summary and learning curve were not written: %s", getattr(error, "strerror", None) or error)
        return False


def _evaluated(run: RunDirectory, counters: Counters) -> dict[str, Any]:
    """The newest evaluation with a finite mean, and the best one of the same protocol; None without one. Raises OSError."""
    lines = [line for line in evaluation_lines(run.evaluations) if line["update"] <= counters.updates]
    lines = [line for line in lines if math.isfinite(line["mean_return"])]
    same = [line for line in lines if line["protocol"] == lines[-1]["protocol"]]
    best = max(same, key=lambda line: float(line["mean_return"]), default=None)
    shown = {"evaluation": same[-1] if same else None, "best_evaluation": best}
    return {
        name: line and {**{key: line[key] for key in ("update", "steps", "mean_return")}, "episodes": len(line["returns"])}
        for name, line in shown.items()
    }


def evaluation_lines(path: Path) -> list[dict[str, Any]]:
    """The results in evaluations.jsonl. A full disk can leave an incomplete line, which is left out. Raises OSError."""
    found = []
    for text in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            found.append(checked(json.loads(text), "evaluation", EVALUATION))
    return found


def log_result(
    counters: Counters, episodes: ReturnStatistics | None, bottleneck: Bottleneck | None, *, interrupted: bool
) -> None:
    """Log how far the run has come, its mean return, and what limited its speed.

    episodes: those of training; None for a run that plays none.
    """
    log.info(
        "%s after %s: %s, %s updates%s",
        "Stopped" if interrupted else "Finished",
        format_duration(counters.seconds),
        steps_and_frames(counters.steps, counters.frames),
        f"{counters.updates:,}",
        f", {counters.episodes:,} episodes, {_mean_return(episodes)}" if episodes is not None else " on recorded steps",
    )
    for task, mean in episodes.task_means.items() if episodes else ():
        log.info("  %s: mean return %.2f", task, mean)
    if bottleneck:
        log.info("%s", bottleneck.line)


def _mean_return(episodes: ReturnStatistics) -> str:
    if (mean := episodes.mean_return) is None:
        return "no episode has ended yet"
    count, rate = len(episodes.recent), success_rate(episodes.infos.at_end)
    return f"mean return of the last {count}: {mean:.2f}" + ("" if rate is None else f", success rate: {rate:.2f}")


def log_next_commands(
    run: RunDirectory,
    checkpoint: Path | None,
    *,
    curve: bool,
    pictures: bool,
    remote: bool = False,
    max_steps: int | None = None,
) -> None:
    """Log where the results are, and the commands that resume the run and show or test its policy.

    Args:
        run: its directory.
        checkpoint: the last one, None if none was saved.
        curve: whether a learning curve was drawn.
        pictures: whether the environment can be shown.
        remote: whether only clients have the environment.
        max_steps: budget with which a finished run can be resumed; None for a run that was interrupted.
    """
    program, path = f"python {shell_name_of_program()}", shlex.quote(str(run.path))
    budget = f" --environment_max_steps={max_steps}" if max_steps else ""
    if curve:
        log.info("Learning curve: %s", run.curve)
    if checkpoint:
        log.info("Checkpoint: %s", checkpoint)
        log.info("Resume: %s --op_mode=train_w_load --load=%s%s", program, path, budget)
        word, mode = ("Watch:  ", "test --render") if pictures else ("Test:   ", "test")
        if remote:
            word, mode = "Serve:  ", "serve"
        log.info("%s%s --op_mode=%s --load=%s", word, program, mode, path)
