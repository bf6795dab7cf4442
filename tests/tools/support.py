"""Suites and runs that tests write by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.settings.config import DEFAULTS

HALF_REPLAYED = [
    {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
    {"type": "standard", "capacity": 100, "sample_ratio": 0.5},
]
SUITE: dict[str, Any] = {
    "name": "tiny",
    "about": "Two settings on the toy environment.",
    "common": {"network": "mlp", "environment_max_steps": 2000},
    "variants": {"queue": {}, "queue + standard": {"replay_parameters": HALF_REPLAYED}},
    "envs": ["Catch-v0"],
    "seeds": [1, 2],
}


BUDGET = 10
"""Steps that every run here has reached. Runs with other budgets would have other settings."""


def write_suite(folder: Path, **changes: Any) -> Path:
    """Write `SUITE` with changed keys and return its file. None removes a key."""
    content = {name: value for name, value in {**SUITE, **changes}.items() if value is not None}
    path = folder / "suite_file.json"
    path.write_text(json.dumps(content))
    return path


def write_run(
    path: Path,
    *,
    returns: Sequence[float | None] = (0.0, 1.0),
    frames: int = 100,
    finished: bool | None = True,
    commit: str = "abc",
    **settings: Any,
) -> Path:
    """Write a run directory with one row of metrics for each return, the last at `frames`; that is beyond its budget.

    finished: what its summary says; None writes no summary.
    """
    path.mkdir(parents=True)
    config = {
        "settings": {**DEFAULTS, "env": "Catch-v0", "network": "nature", "environment_max_steps": BUDGET, **settings},
        "command": ["main.py", "--op_mode=train"],
        "git_commit": commit,
        "host": {"system": "Linux", "cores": 2},
        "versions": {"python": "3.11"},
    }
    (path / "config.json").write_text(json.dumps(config))
    lines = ["seconds,steps,frames,charts/FPS,charts/episodic_return_mean"]
    for row, value in enumerate(returns, 1):
        at = frames * row // len(returns)
        lines.append(f"{at / 10},{at // 4},{at},40,{'' if value is None else value}")
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    if finished is not None:
        write_summary(path, finished=finished, steps=frames // 4, mean_return=returns[-1] if returns else None)
    return path


def write_summary(path: Path, *, finished: bool, steps: int = 2000, mean_return: float | None = 0.5) -> None:
    (path / "summary.json").write_text(
        json.dumps({"finished": finished, "steps": steps, "mean_return": mean_return, "seconds": 61.0})
    )


def add_checkpoint(run: Path) -> None:
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / "update_000000007.pt").write_bytes(b"")


def settings_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return `--name=value` flags as a dict."""
    pairs: list[tuple[str, str]] = []
    for argument in arguments:
        name, value = argument.removeprefix("--").split("=", 1)
        pairs.append((name, value))
    return dict(pairs)


def write_comparison(folder: Path, env: str, scores: Mapping[str, Sequence[float]]) -> None:
    """Write runs of one game. scores: learning rate (as text) -> the last return of each seed."""
    for rate, values in scores.items():
        for seed, value in enumerate(values, 1):
            path = folder / f"{env.replace('/', '-')}_{rate}_{seed}"
            write_run(path, returns=(0.0, value), env=env, lr=float(rate), seed=seed)
