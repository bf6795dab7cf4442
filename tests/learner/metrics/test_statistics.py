"""Statistics of updates, episodes, policy lag and time since the last record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from learner.metrics.statistics import LagStatistics, ReturnStatistics, TimeFractions, UpdateMetrics, ended_episodes


def trajectory_with(
    episodes: dict[int, tuple[float, int]], unroll_length: int = 6, environment: int = 0
) -> dict[str, np.ndarray]:
    """A trajectory. episodes: row -> return and length of the episode that ended there."""
    returns = np.full(unroll_length, np.nan, np.float32)
    lengths = np.zeros(unroll_length, np.int32)
    for row, (episode_return, length) in episodes.items():
        returns[row], lengths[row] = episode_return, length
    return {"episode_return": returns, "episode_length": lengths, "environment_id": np.int32(environment)}


def test_only_whole_episodes_count() -> None:
    episodes = ReturnStatistics(window=10)
    episodes.add(ended_episodes(trajectory_with({})))
    assert (episodes.count, episodes.mean_return, episodes.read()) == (0, None, {})
    episodes.add(ended_episodes(trajectory_with({0: (-21.0, 800), 5: (3.0, 1000)})))
    episodes.add(ended_episodes(trajectory_with({2: (0.0, 600)})))
    assert episodes.count == 3
    assert episodes.read() == {
        "charts/episodic_return": -6.0,
        "charts/episodic_length": 800.0,
        "charts/episodic_return_mean": -6.0,
    }


def test_a_record_without_an_episode_has_only_the_running_mean() -> None:
    episodes = ReturnStatistics(window=10)
    episodes.add(ended_episodes(trajectory_with({1: (4.0, 10)})))
    episodes.read()
    assert episodes.read() == {"charts/episodic_return_mean": 4.0}


def test_the_mean_is_over_the_last_episodes() -> None:
    episodes = ReturnStatistics(window=2)
    for episode_return in (100.0, 1.0, 2.0):
        episodes.add(ended_episodes(trajectory_with({3: (episode_return, 5)})))
    assert episodes.mean_return == 1.5
    assert episodes.count == 3
    assert episodes.read()["charts/episodic_return"] == pytest.approx(103 / 3)


def test_each_task_has_means_of_its_own() -> None:
    """Environment i plays task i mod 2."""
    episodes = ReturnStatistics(window=2, tasks=("a", "b"))
    for environment, episode_return in ((0, 1.0), (2, 3.0), (5, 100.0), (4, 5.0)):
        episodes.add(ended_episodes(trajectory_with({3: (episode_return, 5 + environment)}, environment=environment)))
    assert episodes.task_means == {"a": 4.0, "b": 100.0}
    record = episodes.read()
    assert {name: value for name, value in record.items() if name.startswith("tasks/")} == {
        "tasks/a/episodic_return": 3.0,
        "tasks/a/episodic_length": 7.0,
        "tasks/b/episodic_return": 100.0,
        "tasks/b/episodic_length": 10.0,
        "tasks/a/episodic_return_mean": 4.0,
        "tasks/b/episodic_return_mean": 100.0,
    }
    assert record["charts/episodic_return_mean"] == 52.5
    assert [name for name in episodes.read() if name.startswith("tasks/")] == [
        f"tasks/{task}/episodic_return_mean" for task in "ab"
    ]


def test_update_scalars_are_averaged_since_the_last_reading() -> None:
    metrics = UpdateMetrics()
    assert metrics.read() == {}
    for value in (1.0, 2.0, 6.0):
        metrics.add({"losses/a": torch.tensor(value), "losses/b": torch.tensor(value > 1)})
    assert metrics.read() == {"losses/a": 3.0, "losses/b": pytest.approx(2 / 3)}
    assert metrics.read() == {}
    metrics.add({"losses/a": torch.tensor(5.0, dtype=torch.float64)})
    assert metrics.read() == {"losses/a": 5.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_scalars_are_left_out_of_the_mean(bad: float) -> None:
    metrics = UpdateMetrics()
    for value in (1.0, bad, 3.0):
        metrics.add({"losses/a": torch.tensor(value)})
    assert metrics.read() == {"losses/a": 2.0}


def test_lag_is_the_learner_s_version_minus_the_acting_version() -> None:
    lag = LagStatistics(["queue", "standard", "elite"])
    versions = np.array([[10, 10], [8, 8], [0, 4]])
    lag.add(10, versions, np.array([False, False, True]), np.array([0, 0, 2]))
    lag.add(12, versions, np.array([False, False, True]), np.array([0, 0, 2]))
    assert lag.read() == {"charts/policy_lag": 2.0, "replay/queue/policy_lag": 2.0, "replay/elite/policy_lag": 9.0}
    lag.add(10, versions, np.array([True, True, True]), np.array([1, 1, 2]))
    assert lag.read() == {"replay/standard/policy_lag": 1.0, "replay/elite/policy_lag": 8.0}
    assert lag.read() == {}


def test_time_fractions_are_of_the_wall_time_since_the_last_reading() -> None:
    clocks = np.array([[1.0, 2.0], [3.0, 4.0]])
    feeder = np.array([[5.0]])
    fractions = TimeFractions({"worker": (("env", "act"), clocks), "feeder": (("insert",), feeder)})
    fractions.add("update", 3.0)
    clocks += [[4.0, 0.0], [8.0, 2.0]]
    feeder += 2.0
    wanted: dict[str, Any] = {"time/learner_update": 0.3, "time/worker_env": 0.6, "time/worker_act": 0.1}
    wanted["time/feeder_insert"] = 0.2
    assert fractions.read(10.0) == pytest.approx(wanted)
    fractions.add("update", 1.0)
    fractions.add("update", 1.0)
    fractions.add("wait", 0.5)
    wanted = {"time/learner_update": 0.5, "time/learner_wait": 0.125}
    wanted |= {"time/worker_env": 0.0, "time/worker_act": 0.0, "time/feeder_insert": 0.0}
    assert fractions.read(4.0) == pytest.approx(wanted)


def test_a_stage_that_began_before_the_last_reading_fills_no_more_than_the_time_between() -> None:
    clocks = np.zeros((2, 2))
    fractions = TimeFractions({"worker": (("wait", "env_cpu"), clocks)})
    clocks[0] += [5.0, 8.0]
    shares = [fractions.read(seconds)["time/worker_wait"] for seconds in (2.0, 2.0, 2.0, 2.0)]
    assert shares == pytest.approx([0.5, 0.5, 0.25, 0.0])  # the other worker has not waited
    clocks[1] += [1.0, 8.0]
    assert fractions.read(2.0) == pytest.approx({"time/worker_wait": 0.25, "time/worker_env_cpu": 2.0})  # several threads


def test_each_scalar_is_averaged_over_the_updates_in_which_it_was_finite() -> None:
    metrics = UpdateMetrics()
    nan = torch.tensor(float("nan"))
    metrics.add({"a": torch.tensor(1.0), "b": nan, "never": nan})
    metrics.add({"a": torch.tensor(3.0), "b": torch.tensor(5.0), "never": nan})
    assert metrics.read() == {"a": 2.0, "b": 5.0}
    assert metrics.read() == {}


def test_updates_that_report_different_scalars_are_averaged_by_name() -> None:
    metrics = UpdateMetrics()
    metrics.add({"loss": torch.tensor(1.0), "norm": torch.tensor(4.0)})
    metrics.add({"norm": torch.tensor(2.0)})
    metrics.add({})
    metrics.add({"norm": torch.tensor(3.0), "loss": torch.tensor(2.0)})
    assert metrics.read() == {"loss": 1.5, "norm": 3.0}
    assert metrics.read() == {}
