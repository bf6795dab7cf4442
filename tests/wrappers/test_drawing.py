"""Whether an environment can be drawn is known, and a failure of OpenGL names the packages with which it can."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from tests.wrappers.environments import HERE, Counting
from wrappers import EnvConfig, facts, gymnasium_env
from wrappers.drawing import drawing_hint

GLAD = "ERROR: gladLoadGL error"


@pytest.fixture(autouse=True)
def without_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)


@pytest.mark.parametrize(
    ("message", "env_id", "named"),
    [
        (GLAD, "Hopper-v5", ["MUJOCO_GL=egl", "MUJOCO_GL=osmesa", "libegl1", "libosmesa6"]),
        (GLAD, "envpool:Hopper-v5", ["EGL", "libegl1"]),
        ("no picture", "CartPole-v1", []),
    ],
)
def test_the_hint_names_what_the_environment_can_be_drawn_with(message: str, env_id: str, named: list[str]) -> None:
    hint = drawing_hint(message, env_id)
    assert bool(hint) == bool(named)
    assert all(name in hint for name in named)
    assert ("MUJOCO_GL" in hint) == ("MUJOCO_GL=egl" in named), "EnvPool does not read the variable"


def test_a_process_that_died_while_it_drew_gets_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, stderr: BinaryIO, **__: Any) -> SimpleNamespace:
        stderr.write(f"more\n{GLAD}\n".encode())
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", die)
    with pytest.raises(ValueError, match=f"died with exit code 1: {GLAD}; EnvPool's MuJoCo .*libegl1"):
        facts._ask("{}", "envpool:Hopper-v5", "made and rendered")


@pytest.mark.parametrize(("code", "cause"), [(-11, "signal SIGSEGV"), (-40, "signal 40"), (3, "exit code 3")])
def test_the_cause_of_death_is_named(monkeypatch: pytest.MonkeyPatch, code: int, cause: str) -> None:
    """Most real-time signals have no name."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    with pytest.raises(ValueError, match=f"got a process that died with {cause}: no message"):
        facts._ask("{}", "CartPole-v1", "made")


@pytest.mark.parametrize(("modes", "pictures"), [(["human", "rgb_array"], True), (["human"], False)])
def test_it_is_known_whether_there_are_pictures(modes: list[str], pictures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "metadata", {"render_modes": modes})
    counting = EnvConfig(env=f"{HERE}:TestCounting-v1", frames_stacked=1)
    found = gymnasium_env.try_out(counting, render=False)
    assert found.has_pictures is pictures
    assert gymnasium_env.description_of(counting, found).has_pictures is pictures
