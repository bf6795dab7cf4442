"""Random play ends with the wait for it, although its environments may hang."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from workers import random_play
from workers.processes.worker import ENDING
from workers.random_play import RandomPlay
from wrappers import Step, VectorEnv
from wrappers.spec import EnvConfig


def test_random_play_is_killed_if_the_wait_is_interrupted() -> None:
    play, calls = RandomPlay.__new__(RandomPlay), []

    def interrupt() -> None:
        raise KeyboardInterrupt

    play._words = SimpleNamespace(recv=interrupt, close=lambda: None)
    play._shared = SimpleNamespace(arrays={"observations": None, ENDING: [False]}, close=lambda: None)
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
