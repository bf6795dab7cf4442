"""Summary statistics, the printed table and the results file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from learner.evaluation.evaluator import EvaluationResult
from learner.evaluation.results import mean_of_tasks, summarise, table, task_table, write_results

PONG = "PongNoFrameskip-v4"


def episodes(*returns: float) -> list[dict[str, Any]]:
    return [{"return": value, "length": 100 + index, "truncated": index == 0} for index, value in enumerate(returns)]


def test_statistics_of_four_episodes() -> None:
    summary = summarise(episodes(2.0, 4.0, 4.0, 10.0), PONG)
    assert summary == {
        "episodes": 4,
        "mean_return": 5.0,
        "median_return": 4.0,
        "standard_error": pytest.approx((36 / 3) ** 0.5 / 2),
        "min_return": 2.0,
        "max_return": 10.0,
        "mean_length": 101.5,
        "truncated_episodes": 1,
        "human_normalised": pytest.approx(100 * 25.7 / 35.3),
        "random_return": -20.7,
        "human_return": 14.6,
    }


def test_one_episode_has_no_standard_error() -> None:
    summary = summarise(episodes(3.0), PONG)
    assert summary["standard_error"] is None
    assert summary["mean_return"] == 3.0
    assert any(line.split()[:3] == ["agent", "3.00", "-"] for line in table(summary, PONG))


def test_the_table_shows_agent_random_and_human() -> None:
    lines = table(summarise(episodes(20.0, 20.5), PONG), PONG)
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["agent"] == ["20.25", "0.25", "20.25", "20.00", "20.50", "100.5", "2"]
    assert rows["random"] == ["-20.70"]
    assert rows["human"] == ["14.60"]
    assert len({line.index(value) + len(value) for line, value in ((lines[1], "20.25"), (lines[3], "-20.70"))}) == 1
    assert "Human-normalised: 116.0 %" in lines[-1]
    assert "dqn_zoo" in lines[-1]


def test_several_games_have_a_mean_normalised_score() -> None:
    games = {PONG: 14.6, "BreakoutNoFrameskip-v4": 16.1}  # 100 % and 50 %
    summaries = {game: summarise(episodes(mean, mean), game) for game, mean in games.items()}
    lines = task_table(summaries)
    assert [line.split()[:2] for line in lines[1:3]] == [[PONG, "14.60"], ["BreakoutNoFrameskip-v4", "16.10"]]
    assert mean_of_tasks(summaries) == pytest.approx(75.0)
    assert "75.0 %" in lines[-1]
    assert EvaluationResult(1, 1, (1.0,), tasks=games).score == pytest.approx(75.0)
    assert EvaluationResult(1, 1, (1.0, 3.0), tasks={**games, "Catch-v0": 1.0}).score == 2.0
    assert mean_of_tasks({**summaries, "Catch-v0": summarise(episodes(1.0), "Catch-v0")}) is None


def test_without_published_scores_there_is_no_normalised_score() -> None:
    summary = summarise(episodes(1.0, 1.0), "Catch-v0")
    assert summary["human_normalised"] is None
    text = "\n".join(table(summary, "Catch-v0"))
    assert "no published scores" in text
    assert "Human-normalised" not in text


def test_an_older_results_file_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1700.0)
    paths = [write_results(tmp_path, 12, {"number": number}) for number in range(3)]
    assert [path.name for path in paths] == [f"evaluation_12_{stamp}.json" for stamp in (1700, 1701, 1702)]
    assert [json.loads(path.read_text())["number"] for path in paths] == [0, 1, 2]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_results(tmp_path / "nowhere", 1, {})
