"""A user finds the numbers of infos in every file of a run, after a resume too, and in a test's result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint
from tests.support import run_main
from tests.wrappers.environments import HERE

STEPS = 600
ENV = f"--env={HERE}:TestReporting-v1"
SMALL = ["--agent=ppo", "--nopreflight", "--worker_count=1", "--envs_per_worker=4", "--unroll_length=16"]


def run(*arguments: str) -> str:
    done = run_main(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which was resumed once."""
    results = tmp_path_factory.mktemp("results")
    first = [*SMALL, "--reproducible", "--eval_period=2", "--eval_episodes=2"]
    run("--op_mode=train", ENV, f"--environment_max_steps={STEPS}", f"--results_dir={results}", *first)
    (found,) = (path for path in results.iterdir() if path.name != "latest")
    run("--op_mode=train_w_load", f"--load={found}", f"--environment_max_steps={2 * STEPS}", f"--results_dir={results}")
    return found


def newest(column: np.ndarray) -> float:
    return float(column[np.isfinite(column)][-1])


def test_metrics_and_summary_hold_the_end_and_the_mean(folder: Path) -> None:
    metrics = read_metrics(folder / "metrics.csv")
    wanted = {"is_success": (1.0, 1 / 3), "cost": (1.5, 1.0), "late": (7.0, 7.0)}  # the costs of an episode are 0.5, 1 and 1.5
    for name, (end, mean) in wanted.items():
        assert newest(metrics[f"info/{name}_at_end"]) == end
        assert newest(metrics[f"info/{name}_mean"]) == pytest.approx(mean, abs=0.05)
        assert newest(metrics[f"eval/info/{name}_at_end"]) == end
        assert newest(metrics[f"eval/info/{name}_mean"]) == pytest.approx(mean, rel=1e-5)
    assert not [name for name in metrics if any(word in name for word in ("text", "vector", "nested", "bad"))]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["success_rate"] == 1.0
    assert summary["info"] == {f"info/{name}_at_end": end for name, (end, _) in wanted.items()}
    assert summary["evaluation"]["mean_return"] == newest(metrics["eval/episodic_return"])
    line = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    assert line["info"]["is_success_mean"] == pytest.approx(1 / 3)


def test_a_checkpoint_keeps_the_numbers_of_the_last_episodes(folder: Path) -> None:
    newest = load_checkpoint(max((folder / "checkpoints").glob("update_*.pt")))
    assert len(newest.infos) == len(newest.returns) == 100
    assert newest.infos[0] == {"is_success": 1.0, "cost": 1.5, "late": 7.0}


def test_test_mode_prints_and_writes_them(folder: Path) -> None:
    printed = run("--op_mode=test", f"--load={folder}", "--test_episode_count=3")
    (path,) = folder.glob("evaluation_*.json")
    result = json.loads(path.read_text())
    assert result["success_rate"] == result["info"]["is_success_at_end"] == 1.0
    assert result["info"]["cost_mean"] == 1.0
    assert [episode["info"]["late"] for episode in result["episodes"]] == [7.0] * 3
    assert "info/cost_at_end" in printed
