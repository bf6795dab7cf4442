"""Reproducible runs in this process: they are killed and resumed, and their ends are compared to the bit."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from learner.runs.checkpoint import Checkpoint, load_checkpoint, load_replay
from learner.runs.directory import RunDirectory, update_of
from learner.runs.saving import Saver
from learner.train import train
from tests.support import same, small_plan

HALF = 10
WALL_CLOCK = ("seconds", "time/", "cores/", "hardware/", "charts/SPS", "charts/FPS", "charts/updates_per_second")

MIXTURES: dict[str, list[dict[str, Any]]] = {
    "queue": [{"type": "queue", "capacity": 4, "sample_ratio": 1.0}],  # a block of three is often half taken
    "fifo and reservoir": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.4},
        {"type": "standard", "capacity": 30, "sample_ratio": 0.3},
        {"type": "standard", "capacity": 30, "sample_ratio": 0.3, "retention": "reservoir"},
    ],
    "circular": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "circular", "slots": 3, "uses": 4, "sample_ratio": 0.5},
    ],
    "elite": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "elite", "capacity": 30, "sample_ratio": 0.5, "lambda_batch_multiplier": 3},
    ],
    "attentive": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "attentive", "capacity": 30, "sample_ratio": 0.5, "dist_function": "cos_dist"},
    ],
    "custom with insertion": [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "custom", "capacity": 30, "sample_ratio": 0.5, "insert_strategy": "elite_insertion", "elite_batch_size": 4},
    ],
}


class Killed(BaseException):
    """Ends a run at once."""


def settings_of(mixture: str) -> dict[str, Any]:
    return {
        "reproducible": True,
        "replay_parameters": json.dumps(MIXTURES[mixture]),
        "environment_max_steps": 800,
        "worker_count": 2,
        "envs_per_worker": 3,
        "checkpoint_period": HALF,
        "return_window": 10,
        "log_period": 1e5,
        "precision": "float32",  # and not what the machine is fastest in
    }


def play(run: RunDirectory, resumed: Checkpoint | None = None, replay: dict[str, Any] | None = None, **settings: Any) -> None:
    assert train(small_plan(**settings), run, resumed, replay=replay) == 0


def play_until_killed(run: RunDirectory, **settings: Any) -> tuple[Checkpoint, dict[str, Any]]:
    """Play up to the first checkpoint and end as if the process was killed there. Returns the checkpoint and its replays."""
    save = Saver.save

    def save_then_die(*arguments: Any) -> None:
        save(*arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "save", save_then_die)
        with pytest.raises(Killed):
            play(run, **settings)
    (path,) = run.checkpoint_paths()
    checkpoint = load_checkpoint(path)
    return checkpoint, load_replay(run.replay_path(checkpoint.counters.updates), checkpoint)


def assert_a_kill_changes_nothing(folder: Path, *, interrupted: bool = False, **settings: Any) -> RunDirectory:
    """A run that is killed at its first checkpoint and resumed ends like one that is not. Returns the latter's directory.

    interrupted: see `assert_same_end`.
    """
    straight, broken = (RunDirectory.create(folder, name) for name in ("straight", "broken"))
    play(straight, **settings)
    checkpoint, replay = play_until_killed(broken, **settings)
    play(broken, checkpoint, replay, **settings)
    assert load_checkpoint(broken.checkpoint_paths()[-1]).counters.updates > checkpoint.counters.updates
    assert_same_end(straight, broken, interrupted=interrupted)
    return straight


def rows_of(run: RunDirectory) -> list[dict[str, str]]:
    """Rows of metrics.csv without the columns that depend on time."""
    with run.metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if not name.startswith(WALL_CLOCK)} for row in rows]


def assert_same_end(one: RunDirectory, other: RunDirectory, *, interrupted: bool = False) -> None:
    """Compare newest checkpoint and replay, and also best and metrics unless an interruption has made one more checkpoint."""
    first, second = (load_checkpoint(run.checkpoint_paths()[-1]) for run in (one, other))
    for name in ("spec", "protocol", "agent", "learning_rate", "generators", "returns"):
        assert same(getattr(first, name), getattr(second, name)), name
    counters = [{**asdict(checkpoint.counters), "seconds": 0} for checkpoint in (first, second)]
    assert counters[0] == counters[1]
    states = [
        load_replay(run.replay_paths()[-1], checkpoint) for run, checkpoint in zip((one, other), (first, second), strict=True)
    ]
    assert states[0].keys() == {"mixture", "under_way"}
    for name in states[0]:
        assert same(states[0][name], states[1][name]), name
    if interrupted:
        return
    assert [path.name for path in one.checkpoint_paths()] == [path.name for path in other.checkpoint_paths()]
    assert same(load_checkpoint(one.best).agent, load_checkpoint(other.best).agent)
    assert rows_of(one) == rows_of(other)
    assert len(rows_of(one)) >= math.ceil(update_of(one.checkpoint_paths()[-1]) / HALF)  # no comparison of empty files
