"""Random play ends with the wait for it, although its environments may hang."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.random_play import RandomPlay


def test_random_play_is_killed_if_the_wait_is_interrupted() -> None:
    play, calls = RandomPlay.__new__(RandomPlay), []

    def interrupt() -> None:
        raise KeyboardInterrupt

    play._words = SimpleNamespace(recv=interrupt, close=lambda: None)
    play._shared = SimpleNamespace(arrays={"observations": None}, close=lambda: None)
    play._process = SimpleNamespace(**{name: lambda name=name: calls.append(name) for name in ("kill", "join", "close")})
    with pytest.raises(KeyboardInterrupt):
        play.observations()
    assert calls == ["kill", "join", "close"]
