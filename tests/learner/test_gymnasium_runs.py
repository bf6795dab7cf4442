"""Runs on environments of Gymnasium: trained, evaluated, resumed, tested, shown and exported like any other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from learner import launch
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from tests.wrappers.environments import HERE
from workers.processes import launcher

SMALL: dict[str, Any] = {
    "network": "mlp",
    "worker_kind": "serial",
    "envs_per_worker": 4,
    "unroll_length": 10,
    "batch_size": 4,
    "learner_threads": 1,
    "environment_max_steps": 800,
    "precision": "float32",
    "verbosity": 0,
}


def run(op_mode: str, results: Path, **settings: Any) -> int:
    return launch.run(launch.prepare(op_mode, {"verbosity": 0, "results_dir": str(results), **settings}, []))


def directory(results: Path) -> RunDirectory:
    return RunDirectory((results / "latest").resolve())


def test_a_run_is_trained_resumed_tested_shown_and_exported(tmp_path: Path) -> None:
    assert run("train", tmp_path, env="CartPole-v1", **SMALL) == 0
    assert load_checkpoint(directory(tmp_path).checkpoint_paths()[-1]).settings["frames_stacked"] == 1
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=1200) == 0
    assert load_checkpoint(directory(tmp_path).checkpoint_paths()[-1]).counters.steps == 1200
    assert run("test", tmp_path, load="latest", test_episode_count=3, render=True, greedy=True) == 0
    [result] = directory(tmp_path).path.glob("evaluation_*.json")
    found = json.loads(result.read_text())
    assert len(found["episodes"]) == 3
    assert found["video"]
    assert (directory(tmp_path).path / found["video"]).stat().st_size > 0
    assert run("export", tmp_path, load="latest") == 0


def test_returns_of_other_arguments_of_the_environment_are_not_compared(tmp_path: Path) -> None:
    """Every return is positive at first, and none is later. The best checkpoint is one of the present arguments."""
    assert run("train", tmp_path, env="CartPole-v1", return_window=5, checkpoint_period=5, **SMALL) == 0
    before = load_checkpoint(directory(tmp_path).best)
    assert min(before.returns) > 0
    arguments = {"env_args": '{"sutton_barto_reward": true}', "environment_max_steps": 1600}
    assert run("train_w_load", tmp_path, load="latest", **arguments) == 0
    checkpoints = directory(tmp_path).checkpoints
    newest, best = (load_checkpoint(path) for path in (directory(tmp_path).checkpoint_paths()[-1], directory(tmp_path).best))
    assert max(newest.returns + best.returns) <= 0
    assert best.protocol == newest.protocol != before.protocol
    assert load_checkpoint(checkpoints / "left_behind_best.pt").counters == before.counters
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=2000) == 0
    assert not (checkpoints / "left_behind_best_2.pt").exists()


def test_a_resumed_reproducible_run_has_the_bits_of_one_that_went_on(tmp_path: Path) -> None:
    settings = {**SMALL, "env": f"{HERE}:TestCounting-v1", "reproducible": True, "lr": 1e-3, "lr_end_value": 1e-3}
    assert run("train", tmp_path / "whole", **settings) == 0
    assert run("train", tmp_path / "half", **{**settings, "environment_max_steps": 400}) == 0
    assert run("train_w_load", tmp_path / "half", load="latest", environment_max_steps=800) == 0
    whole, half = (load_checkpoint(directory(tmp_path / name).checkpoint_paths()[-1]) for name in ("whole", "half"))
    assert whole.counters.steps == half.counters.steps
    for name, weights in whole.agent["modules"]["network"].items():
        assert torch.equal(weights, half.agent["modules"]["network"][name]), name


@pytest.mark.skipif(sys.platform != "linux", reason="the test reads the name of a process from /proc")
def test_workers_close_their_environments(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    settings = {**SMALL, "worker_kind": "cpu", "worker_count": 1, "preflight": False, "calibrate_input": False}
    env = {"env": f"{HERE}:TestClosing-v1", "env_args": json.dumps({"path": str(closed)})}
    assert run("train", tmp_path, **settings, **env) == 0
    assert sum(name.startswith("worker") for name in closed.read_text().splitlines()) == SMALL["envs_per_worker"]


OWN_NETWORK = """
import math
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 8))
"""


@pytest.mark.parametrize("kind", ["serial", "cpu"])
def test_relative_paths_hold_although_environments_change_the_current_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "level").touch()
    (tmp_path / "my_net.py").write_text(OWN_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "_fork_server", None)  # that of earlier tests has the folder that was current then
    monkeypatch.setattr(launch, "wants_preflight", lambda *_: True)  # the measurement makes environments in this process
    env = {"env": f"{HERE}:TestMoving-v1", "env_args": json.dumps({"path": str(elsewhere)})}
    given = {**SMALL, **env, "worker_kind": kind, "worker_count": 1, "network": "my_net.py:Net"}
    assert run("train", Path("results"), **given) == 0
    assert directory(tmp_path / "results").checkpoint_paths()
    assert run("test", Path("results"), load="results/latest", test_episode_count=1) == 0
    assert list(directory(tmp_path / "results").path.glob("evaluation_*.json"))
    assert [path.name for path in elsewhere.iterdir()] == ["level"]
    launcher._end_fork_server()


def test_the_default_of_the_family_yields_to_what_is_given() -> None:
    given = {"env": "CartPole-v1", **SMALL}
    usual = launch.prepare("train", given, [])
    assert (usual.config.env.frames_stacked, usual.config.workers.worker_timeout) == (1, 60.0)
    assert any(note.startswith("frames_stacked=1") for note in usual.notes)
    asked = launch.prepare("train", {**given, "frames_stacked": 3, "worker_timeout": 5.0}, [])
    assert (asked.config.env.frames_stacked, asked.config.workers.worker_timeout) == (3, 5.0)
    pong = launch.prepare("train", {"network": "nature"}, [])
    assert (pong.config.env.frames_stacked, pong.config.workers.worker_timeout) == (4, 3.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env": "LunarLander-v2"}, "LunarLander-v3"),
        ({"env": f"{HERE}:TestFailing-v1"}, "no licence"),
        ({"env": "CartPole-v1", "sticky_actions": 0.25}, "sticky_actions"),
        ({"env": "CartPole-v1", "max_episode_frames": 10}, "max_episode_frames"),
        ({"env": "CartPole-v1", "protocol": "classic"}, "protocol"),
        ({"env": "Catch-v0", "max_episode_steps": 10}, "max_episode_steps"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        launch.prepare("train", {**SMALL, **settings}, [])


@pytest.mark.parametrize("env", [f"{HERE}:TestVector-v1", f"{HERE}:TestCounting-v1,{HERE}:TestVector-v1"])
def test_an_environment_that_cannot_be_shown_is_refused_before_the_start(env: str, tmp_path: Path) -> None:
    assert run("train", tmp_path, env=env, **SMALL) == 0
    with pytest.raises(ValueError, match="render"):
        launch.prepare("test", {"load": "latest", "results_dir": str(tmp_path), "render": True}, [])
