"""Runs with hindsight: they resume to the bit, are tested and exported, and learn what plain runs do not learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner import launch
from replay.ring.hindsight import Hindsight
from tests.learner.launching import command
from tests.learner.solving import solves
from tests.support import run_main
from tests.test_matrix import SMALL, assert_resumes_to_the_bit, run
from tests.test_refusals import assert_refused


def replays(kind: str = "standard", **others: Any) -> str:
    return json.dumps([{"type": kind, "steps": 2000, "sample_ratio": 1.0, "hindsight": 4, **others}])


def mixed(*, own: bool = False, second: int = 0) -> str:
    """Two replays. own: whether the first one names a function. second: hindsight of the second one."""
    function = {"reward_function": "tests.goal_env:reward"} if own else {}
    first = {"type": "prioritised", "hindsight": 3, "beta_end": 0.4, **function}
    both = (first, {"type": "standard", "hindsight": second})
    return json.dumps([{"capacity": 9, "sample_ratio": 0.5, **each} for each in both])


GOALS, ENDING, SILENT = (f"tests.goal_env:Test{name}-v0" for name in ("Goals", "Ending", "Silent"))
PACED: dict[str, Any] = {"learning_starts": 9, "updates_per_step": 1.0, "batches_at_once": 2, "calibrate_input": False}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "dqn, priorities, images, stacks": {
        "agent": "dqn",
        "env": ENDING,
        "env_args": '{"actions": "choices", "view": "image"}',
        "frames_stacked": 2,
        "replay_parameters": replays("prioritised", beta_end=0.4),
        "epsilon_fraction": 1e-9,
    },
    "sac, a mixture, own function": {
        "agent": "sac",
        "env": SILENT,
        "replay_parameters": mixed(own=True),
    },
    "td3, normalised": {"agent": "td3", "env": GOALS, "replay_parameters": replays(), "normalise_observations": True},
    "crossq": {"agent": "crossq", "env": GOALS, "replay_parameters": replays(), "delay": 1},
    "ddpg": {"agent": "ddpg", "env": ENDING, "replay_parameters": replays()},
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_it_resumes_to_the_bit_plays_and_is_exported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relabelled, relabel = [], Hindsight.relabel

    def counted(hindsight: Hindsight, slots: np.ndarray, rows: np.ndarray, out: Any) -> None:
        relabel(hindsight, slots, rows, out)
        relabelled.append(len(slots))

    monkeypatch.setattr(Hindsight, "relabel", counted)
    settings = {**SMALL, **PACED, "environment_max_steps": 96, "lr_end_value": -1.0, **COMBINATIONS[name]}
    assert_resumes_to_the_bit(tmp_path, **settings)
    assert relabelled
    parts = tmp_path / "parts"
    assert run("test", parts, load="latest", test_episode_count=2) == 0
    if name.startswith("td3"):
        assert run("export", parts, load="latest") == 0


LEARNS: dict[str, Any] = {
    "agent": "dqn",
    "env": "BitFlip8-v0",
    "environment_max_steps": 5_000,
    "frames_stacked": 1,
    "calibrate_input": False,
    "hidden_sizes": "64",
    "envs_per_worker": 8,
    "unroll_length": 8,
    "batch_size": 64,
    "batches_at_once": 8,
    "updates_per_step": 0.25,
    "learning_starts": 500,
    "clip_rewards": False,
    "gamma": 0.95,
    "lr": 2e-3,
    "epsilon_start": 0.2,
    "epsilon_end": 0.0,
    "epsilon_fraction": 0.5,
    "target_update_period": 1,
    "target_update_rate": 0.05,
    "log_period": 0.5,
}
REACHED = -5.0  # mean return if most patterns are reached; the best is -3


def test_patterns_are_reached_with_hindsight_and_not_without(tmp_path: Path) -> None:
    assert solves(REACHED, tmp_path / "hindsight", **LEARNS, replay_parameters=replays(steps=5000))
    assert not solves(REACHED, tmp_path / "plain", **LEARNS, replay_parameters=replays(steps=5000, hindsight=0))


def test_workers_of_other_processes_give_their_episodes(tmp_path: Path) -> None:
    settings = {**SMALL, **PACED, "reproducible": False, "worker_kind": "cpu", "worker_count": 2, "environment_max_steps": 200}
    given = {**settings, "agent": "sac", "env": GOALS, "replay_parameters": replays(), "verbosity": 0}
    assert launch.run(command(tmp_path, "train", **given)) == 0


def test_a_function_that_fails_ends_the_run_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {**SMALL, **PACED, "agent": "sac", "env": "tests.goal_env:TestFailing-v0", "replay_parameters": replays()}
    assert launch.run(command(tmp_path, "train", **given)) == 1
    last = "".join(capsys.readouterr()).strip().splitlines()[-1]
    assert "compute_reward" in last
    assert "weight" in last


FLIP, DQN, SAC = "--env=BitFlip8-v0", "--agent=dqn", "--agent=sac"
REFUSED: dict[str, tuple[list[str], str]] = {
    "sequences": (["--agent=r2d2", FLIP, f"--replay_parameters={replays(steps=20000)}"], "agent r2d2"),
    "trajectories": ([FLIP, f"--replay_parameters={replays(steps=20000)}"], "agent vtrace"),
    "several steps": ([DQN, FLIP, "--n_step=3", f"--replay_parameters={replays()}"], "n_step: wanted 1"),
    "recordings": (["--agent=bcq", FLIP, f"--replay_parameters={replays()}"], "recording"),
    "previous rewards": ([DQN, FLIP, "--core_inputs", f"--replay_parameters={replays()}"], "core_inputs: wanted false"),
    "counts": (
        [SAC, f"--env={GOALS}", "--episodic_count=0.5", f"--replay_parameters={replays()}"],
        "episodic_count: wanted 0 with hindsight, got 0.5",
    ),
    "no goals": ([DQN, "--env=Catch-v0", f"--replay_parameters={replays()}"], "achieved_goal"),
    "goals left out": (
        [SAC, f"--env={GOALS}", "--ignored_observations=achieved_goal", f"--replay_parameters={replays()}"],
        "achieved_goal",
    ),
    "no function": ([SAC, f"--env={SILENT}", f"--replay_parameters={replays()}"], "compute_reward"),
    "no module": (
        [SAC, f"--env={GOALS}", f"--replay_parameters={replays(reward_function='no_such_module:reward')}"],
        "reward_function: wanted no_such_module:reward",
    ),
    "no number": (
        [SAC, f"--env={GOALS}", f"--replay_parameters={replays(reward_function='tests.goal_env:Silent')}"],
        "reward_function: wanted tests.goal_env:Silent",
    ),
    "two functions": (
        [SAC, f"--env={GOALS}", f"--replay_parameters={mixed(own=True, second=4)}"],
        "reward_function: wanted the same",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_hindsight_cannot_do_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    arguments, said = REFUSED[case]
    assert_refused(run_main, tmp_path / "results", arguments, said)
