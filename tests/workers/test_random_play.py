"""Random play ends with the wait for it, although its environments may hang."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.wrappers.environments import HERE
from workers import WorkerError, random_play
from workers.processes.worker import ENDING
from workers.random_play import PLAYED, RandomPlay
from wrappers import Step, VectorEnv, make_spec
from wrappers.spec import EnvConfig


def test_random_play_is_killed_if_the_wait_is_interrupted() -> None:
    play, calls = RandomPlay.__new__(RandomPlay), []

    def interrupt() -> None:
        raise KeyboardInterrupt

    play._words = SimpleNamespace(poll=lambda _: interrupt(), close=lambda: None)
    play._shared = SimpleNamespace(arrays={"observations": [], PLAYED: [0, 0, 0], ENDING: [False]}, close=lambda: None)
    play._closes = False
    play._process = SimpleNamespace(**{name: lambda name=name: calls.append(name) for name in ("kill", "join", "close")})
    with pytest.raises(KeyboardInterrupt):
        play.observations()
    assert calls == ["kill", "join", "close"]


class FailingEnv(VectorEnv):
    """Fails at its reset, and knows whether it was closed."""

    closed = False

    def reset(self, seed: int) -> np.ndarray:
        raise RuntimeError("no display")

    def step(self, actions: np.ndarray) -> Step:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True
        raise RuntimeError("it hides why the reset failed")


def test_environments_that_fail_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = FailingEnv()
    monkeypatch.setattr(random_play, "make_vector_env", lambda *_: env)
    with pytest.raises(RuntimeError, match="no display"):
        random_play.random_observations(EnvConfig(), 1)
    assert env.closed


def hanging(**arguments: Any) -> EnvConfig:
    return EnvConfig(env=f"{HERE}:TestHanging-v1", frames_stacked=1, env_args=json.dumps(arguments))


@pytest.mark.parametrize(("where", "how"), [("constructor", "sleep"), ("reset", "swallow"), ("step", "native")])
def test_random_play_that_hangs_is_ended_and_names_the_call(where: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "start_timeout", lambda *_: 60.0 if where == "step" else 1.0)
    config = hanging(where=where, how=how)
    with pytest.raises(WorkerError, match=rf"{config.env} .* its .*{where}.* hangs .*worker_timeout"):
        RandomPlay(config, make_spec(config), 1, 1, timeout=1.0).observations()


def test_slow_random_play_ends_early_unless_its_bits_must_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "PLAY_SECONDS", 0.1)
    monkeypatch.setattr(random_play, "STEPS", 40)
    calls: list[int] = []
    seen = random_play.random_observations(hanging(pause=0.01), 1, on_call=calls.append)
    assert random_play.FEWEST * random_play.ENVIRONMENTS <= len(seen) < 40
    assert calls == list(range(len(calls)))
    whole = random_play.random_observations(hanging(pause=0.01), 1, whole=True)
    assert len(whole) == 40
    assert torch.equal(seen, whole[: len(seen)])


def test_one_environment_plays_if_making_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "MAKE_SECONDS", 1.5)
    assert (
        len(RandomPlay(hanging(), make_spec(hanging()), 1, 1, timeout=60.0).observations())
        == random_play.STEPS // random_play.EVERY
    )
    monkeypatch.setattr(random_play, "STEPS", 40)
    assert len(random_play.random_observations(hanging(), 1, whole=True)) == 40


def test_every_task_is_played() -> None:
    games = [f"{name}NoFrameskip-v4" for name in ("Pong", "Breakout", "Freeway", "Boxing", "Tennis", "Amidar")]
    config = EnvConfig(env=",".join(games), frames_stacked=1, full_action_space=True, frame_scale_resolution="8,8")
    seen = RandomPlay(config, make_spec(config), 1, 1, timeout=60.0).observations()
    assert seen[:, 0, -1].unique().tolist() == list(range(6))  # the leaf of the task is the last one
    assert len(seen) == 6 * 134  # each fourth of 533 steps
