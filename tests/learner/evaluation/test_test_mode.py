"""Test mode from checkpoint to results: the episodes, the printed lines and the files."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from agents.networks.actor_critic import ActorCritic
from learner.evaluation import render
from learner.evaluation import test_mode as module
from learner.evaluation.test_mode import evaluate, load_policy, make_seeds
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, Counters
from learner.runs.directory import RunDirectory
from learner.settings.config import Config
from tests.learner.evaluation.support import new_network
from tests.support import small_config
from workers.evaluation_policy import EvaluationPolicy
from wrappers import Step, make_spec
from wrappers.toys.base import Toy
from wrappers.toys.catch import Catch

COLUMNS = 5
BREAKOUT = {"env": "BreakoutNoFrameskip-v4", "network": "impala_shallow", "frames_stacked": 4, "greedy": True}
SMALL_FRAMES = {"frame_scale_resolution": "42,42"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run directory, on a machine without a display."""
    monkeypatch.setattr(render, "display_available", lambda: False)
    return RunDirectory.create(tmp_path, "Catch-v0")


@torch.no_grad()
def catcher(config: Config) -> ActorCritic:
    """A network that catches every ball. Its hidden layers compute on which side of the ball the paddle is, and how far."""
    network = new_network(config)
    for parameter in network.parameters():
        parameter.zero_()
    first, second = (layer for layer in network.torso if isinstance(layer, torch.nn.Linear))  # type: ignore[union-attr]
    column = torch.arange(float(COLUMNS))
    first.weight[0, :-COLUMNS] = column.repeat(9)  # the ball's column; the last row holds the paddle
    first.weight[1, -COLUMNS:] = column
    second.weight[0, :2] = torch.tensor([1.0, -1.0])
    second.weight[1, :2] = torch.tensor([-1.0, 1.0])
    network.policy_head.weight[2, 0] = network.policy_head.weight[0, 1] = 100.0
    network.policy_head.bias[1] = 50.0
    return network


def made_checkpoint(config: Config, network: ActorCritic | None = None) -> Checkpoint:
    return Checkpoint(
        settings=config.settings,
        spec=asdict(make_spec(config.env)),
        protocol=make_plan(config).protocol,
        counters=Counters(steps=1000, frames=4000, updates=12, episodes=3),
        agent={"modules": {"network": (network or new_network(config)).state_dict()}},
        learning_rate=1e-4,
    )


def evaluated(config: Config, run: RunDirectory, network: ActorCritic | None = None) -> dict[str, Any]:
    """Evaluate a checkpoint of `network`. Returns the content of the results file."""
    before = set(run.path.glob("evaluation_*.json"))
    assert evaluate(make_plan(config), made_checkpoint(config, network), run.checkpoint_path(12), run) == 0
    (path,) = set(run.path.glob("evaluation_*.json")) - before
    assert path.name.startswith("evaluation_12_")
    return json.loads(path.read_text())


def test_a_policy_that_catches_every_ball_has_mean_and_minimum_one(run: RunDirectory, lines: list[str]) -> None:
    config = small_config(test_episode_count=23, test_environments=5)
    results = evaluated(config, run, catcher(config))
    assert results["summary"]["mean_return"] == results["summary"]["min_return"] == 1.0
    assert results["summary"]["standard_error"] == 0.0
    assert results["summary"]["mean_length"] == 9.0
    assert len(results["episodes"]) == results["summary"]["episodes"] == 23
    assert {(episode["return"], episode["length"]) for episode in results["episodes"]} == {(1.0, 9)}
    assert sorted(np.unique([episode["seed"] for episode in results["episodes"]], return_counts=True)[1]) == [4, 4, 5, 5, 5]
    assert any(line.split()[:2] == ["agent", "1.00"] for line in lines)


def test_each_task_plays_as_many_episodes(run: RunDirectory, lines: list[str]) -> None:
    """The policy without a preference: what is good in one of the two games is as bad in the other."""
    config = small_config(env="Catch-v0,Avoid-v0", test_episode_count=7, test_environments=5)
    results = evaluated(config, run)
    assert list(results["tasks"]) == ["Catch-v0", "Avoid-v0"]
    for env, size in (("Catch-v0", 1.0), ("Avoid-v0", 100.0)):
        played = [episode for episode in results["episodes"] if episode["env"] == env]
        assert results["tasks"][env]["episodes"] == len(played) == 7
        assert {abs(episode["return"]) for episode in played} == {size}
        assert results["tasks"][env]["mean_return"] == np.mean([episode["return"] for episode in played])
        assert any(line.split()[0] == env for line in lines)
    assert results["human_normalised"] is None


def test_random_actions_have_a_low_score(run: RunDirectory) -> None:
    """Uniformly random actions catch at most a third of the balls."""
    config = small_config(test_episode_count=200)
    network = new_network(config)
    torch.nn.init.zeros_(network.policy_head.weight)
    assert -0.9 < evaluated(config, run, network)["summary"]["mean_return"] < -0.1


def test_the_results_name_the_checkpoint_and_the_protocol(run: RunDirectory, lines: list[str]) -> None:
    config = small_config(test_episode_count=4, seed=5)
    results = evaluated(config, run)
    assert results["env"] == "Catch-v0"
    assert results["checkpoint"] == "update_000000012.pt"
    assert results["training"] == asdict(Counters(steps=1000, frames=4000, updates=12, episodes=3))
    assert results["protocol"] == make_plan(config).protocol
    assert results["seed"] == 5
    assert results["seeds"] == make_seeds(5)._asdict()
    assert results["complete"] is True
    assert results["environments"] == 4
    assert results["versions"]["torch"] == metadata.version("torch")
    printed = "\n".join(lines)
    assert "12 updates, 1,000 steps = 4,000 frames" in printed
    assert "Protocol: Catch-v0" in printed
    assert "sampled actions" in printed
    assert f"Results: {run.path}" in printed


def test_the_same_seed_gives_the_same_episodes(run: RunDirectory) -> None:
    network = new_network(small_config())
    one, again, other = (
        evaluated(small_config(test_episode_count=40, seed=seed), run, network)["episodes"] for seed in (1, 1, 2)
    )
    assert one == again
    assert [episode["return"] for episode in one] != [episode["return"] for episode in other]


def test_the_same_seed_gives_the_same_actions() -> None:
    config = small_config()
    checkpoint = made_checkpoint(config)
    observations = np.zeros((50, *make_spec(config.env).observation_shape), dtype=np.uint8)
    one, again, other = (
        load_policy(make_plan(config), checkpoint, seed).choose(observations).actions.numpy() for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_without_a_run_the_results_are_written_next_to_the_checkpoint(tmp_path: Path) -> None:
    config = small_config(test_episode_count=2)
    assert evaluate(make_plan(config), made_checkpoint(config), tmp_path / "copied.pt", None) == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("evaluation_12_")
    assert json.loads(path.read_text())["checkpoint"] == "copied.pt"


@pytest.mark.parametrize("action", [0, 2])
def test_a_greedy_policy_with_one_action_finishes_breakout(run: RunDirectory, action: int) -> None:
    """After a lost life only FIRE serves the next ball. Without it the game would last until the time limit."""
    config = small_config(**BREAKOUT, **SMALL_FRAMES, test_episode_count=2, episodic_life=True, max_episode_frames=20_000)
    network = new_network(config)
    torch.nn.init.zeros_(network.policy_head.weight)
    network.policy_head.bias.data[action] = 1.0
    results = evaluated(config, run, network)
    assert results["protocol"]["actions"] == "greedy"
    for episode in results["episodes"]:
        assert not episode["truncated"]
        assert 60 < episode["length"] < 1000  # five lives, and no waiting for a ball


def test_the_first_signal_reports_the_finished_episodes(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvaluationPolicy, "choose", _signal_at_call(25, EvaluationPolicy.choose))
    results = evaluated(small_config(test_episode_count=10**6, test_environments=3), run)
    assert results["complete"] is False
    assert results["episodes_wanted"] == 10**6
    assert len(results["episodes"]) == 6  # in each of three environments two episodes of nine steps, and autoresets
    assert any("6 of 1,000,000 episodes" in line for line in lines)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_before_the_first_end_of_an_episode_gives_no_score(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvaluationPolicy, "choose", _signal_at_call(3, EvaluationPolicy.choose))
    config = small_config(test_episode_count=5)
    assert evaluate(make_plan(config), made_checkpoint(config), run.checkpoint_path(12), run) == 0
    assert "no episode was finished" in lines[-1]
    assert not list(run.path.glob("evaluation_*"))


def _signal_at_call(number: int, act: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    calls = 0

    def counted(self: EvaluationPolicy, *given: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == number:
            signal.raise_signal(signal.SIGINT)
        return act(self, *given)

    return counted


def test_a_diverged_checkpoint_is_refused_in_one_line(run: RunDirectory, lines: list[str]) -> None:
    config = small_config()
    network = new_network(config)
    network.value_head.bias.data.fill_(float("nan"))
    assert evaluate(make_plan(config), made_checkpoint(config, network), run.checkpoint_path(12), run) == 1
    assert len(lines) == 1
    assert "diverged" in lines[0]


def test_finite_weights_with_infinite_outputs_are_one_line(run: RunDirectory, lines: list[str]) -> None:
    config = small_config()
    network = new_network(config)
    for weights in network.parameters():
        weights.data.fill_(1e30)
    assert evaluate(make_plan(config), made_checkpoint(config, network), run.checkpoint_path(12), run) == 1
    assert any("error: the test failed" in line and line.endswith("diverged") for line in lines)


def test_a_reward_that_is_not_finite_is_one_line_and_the_finished_episodes_count(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All environments end their second episodes together, at step 19."""
    steps = []
    original = Catch.step

    def spoiled(self: Catch, actions: np.ndarray) -> Step:
        steps.append(None)
        step = original(self, actions)
        for values in (step.rewards, step.episode_return) if len(steps) == 19 else ():
            values[1] = np.nan
        return step

    monkeypatch.setattr(Catch, "step", spoiled)
    config = small_config(test_episode_count=12, test_environments=3)
    assert evaluate(make_plan(config), made_checkpoint(config), run.checkpoint_path(12), run) == 1
    (error,) = (line for line in lines if line.startswith("error: "))
    assert error.endswith("environment 1: wanted finite rewards, got nan")
    (path,) = run.path.glob("evaluation_*.json")
    assert len(json.loads(path.read_text())["episodes"]) == 5


def test_results_that_cannot_be_saved_are_still_printed(tmp_path: Path, lines: list[str]) -> None:
    config = small_config(test_episode_count=2)
    assert evaluate(make_plan(config), made_checkpoint(config), tmp_path / "gone" / "copied.pt", None) == 1
    assert any(line.startswith("agent") for line in lines)
    assert "not saved" in lines[-1]


def test_rendering_without_a_display_records_the_first_episodes_and_counts_all(run: RunDirectory, lines: list[str]) -> None:
    config = small_config(test_episode_count=10, render=True)
    results = evaluated(config, run, catcher(config))
    (video,) = run.path.glob("video_12_*.mp4")
    assert results["video"] == video.name
    assert [episode["shown"] for episode in results["episodes"]] == [True] * 3 + [False] * 7
    assert results["summary"]["mean_return"] == 1.0
    pictures = 3 * (1 + 9)  # the first screen of an episode and one after each step
    assert imageio_ffmpeg.count_frames_and_secs(str(video))[0] == pictures
    assert sum("no display found" in line for line in lines) == 1


def test_an_episode_that_fills_the_video_is_finished_and_the_others_are_not_shown(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "VIDEO_SECONDS", 1.5)  # fifteen pictures, ten of them of the first episode
    config = small_config(test_episode_count=6, render=True)
    results = evaluated(config, run, catcher(config))
    assert [episode["shown"] for episode in results["episodes"]] == [True, True, False, False, False, False]
    assert {episode["length"] for episode in results["episodes"]} == {9}
    (video,) = run.path.glob("video_*.mp4")
    assert imageio_ffmpeg.count_frames_and_secs(str(video))[0] == 15


class ClosingWindow(render.Screen):
    """A window that the user closes after some pictures."""

    def __init__(self, pictures: int) -> None:
        self._left = pictures
        self.released = False

    def show(self, picture: np.ndarray) -> None:
        self._left -= 1
        self.closed = self._left <= 0

    def close(self) -> None:
        self.released = True


def test_closing_the_window_reports_the_finished_episodes(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = ClosingWindow(pictures=25)  # in the middle of the third episode
    monkeypatch.setattr(module, "open_screen", lambda env, folder, update, episodes: (screen, episodes))
    results = evaluated(small_config(test_episode_count=50, render=True), run)
    assert len(results["episodes"]) == 2
    assert all(episode["shown"] for episode in results["episodes"])
    assert results["complete"] is False
    assert results["video"] is None
    assert screen.released
    assert any("2 of 50 episodes" in line for line in lines)


class FailingToDraw:
    """The method `render` of a toy that draws some pictures, and then no more."""

    def __init__(self, pictures: int) -> None:
        self.left = pictures

    def __call__(self, env: Toy) -> np.ndarray:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no GL context")
        return np.zeros((100, 50, 3), np.uint8)


@pytest.mark.parametrize("pictures", [0, 12])
def test_an_environment_that_cannot_be_drawn_costs_the_video_alone(
    pictures: int, run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first episode has ten pictures."""
    draw = FailingToDraw(pictures)
    monkeypatch.setattr(Toy, "render", lambda self: draw(self))
    results = evaluated(small_config(test_episode_count=10, render=True), run)
    assert results["complete"]
    assert sum(episode["shown"] for episode in results["episodes"]) == (1 if pictures == 0 else 2)
    assert [": RuntimeError: no GL context" in line for line in lines].count(True) == 1
    videos = list(run.path.glob("video_*.mp4"))
    assert [imageio_ffmpeg.count_frames_and_secs(str(video))[0] for video in videos] == ([pictures] if pictures else [])


def test_a_window_without_pictures_ends_and_all_episodes_count(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, screen = FailingToDraw(12), LastingWindow()
    monkeypatch.setattr(Toy, "render", lambda self: draw(self))
    monkeypatch.setattr(module, "open_screen", lambda env, folder, update, episodes: (screen, episodes))
    results = evaluated(small_config(test_episode_count=10, render=True), run)
    assert screen.closed
    assert [episode["shown"] for episode in results["episodes"]] == [True] * 2 + [False] * 8


class LastingWindow(render.Screen):
    """A window that only the program closes."""

    def show(self, picture: np.ndarray) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_all_episodes_have_different_seeds(run: RunDirectory) -> None:
    config = small_config(test_episode_count=7, render=True)
    seeds = [episode["seed"] for episode in evaluated(config, run)["episodes"]]
    assert len(set(seeds)) == 7
    assert seeds[:3] == [make_seeds(1).shown + index for index in range(3)]


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_seeds_are_valid_for_the_emulator(seed: int) -> None:
    seeds = make_seeds(seed)
    assert 1 <= seeds.vector <= 2**30
    assert 1 <= seeds.shown <= 2**30
    assert len(set(seeds)) == 3
