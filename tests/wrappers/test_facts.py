"""The child process that tries an environment out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.wrappers.environments import HERE
from wrappers import EnvConfig, facts, make_spec


def config(env: str, **arguments: object) -> EnvConfig:
    """env: an id of the test environments. arguments: of the environment."""
    return EnvConfig(env=f"{HERE}:{env}", frames_stacked=1, env_args=json.dumps(arguments))


def test_the_probe_does_not_wait_for_processes_that_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "START_SECONDS", 30.0)
    left = tmp_path / "left"
    try:
        assert make_spec(config("TestLeaving-v1", path=str(left))).frame_shape == (3,)
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("where", "how"), [("constructor", "sleep"), ("reset", "swallow"), ("step", "sleep"), ("close", "sleep")]
)
def test_a_probe_that_hangs_ends_and_says_where(where: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "START_SECONDS", 1.0)
    monkeypatch.setattr(facts, "GRACE_SECONDS", 60.0)  # a busy machine may need so long to start the probe
    hanging = config("TestHanging-v1", where=where, how=how, probed=True)
    with pytest.raises(ValueError, match=rf"env: {hanging.env} .* 1 s \(.*environments.py:\d+\)"):
        make_spec(hanging)


def test_a_probe_that_keeps_python_from_running_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "START_SECONDS", 1.0)
    monkeypatch.setattr(facts, "GRACE_SECONDS", 1.0)
    hanging = config("TestHanging-v1", where="step", how="native", probed=True)
    with pytest.raises(ValueError, match=f"env: wanted {hanging.env} .* 1 s"):
        make_spec(hanging)


def test_an_import_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_module.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(facts, "START_SECONDS", 2.0)
    monkeypatch.setattr(facts, "GRACE_SECONDS", 60.0)  # a busy machine may need so long to start the probe
    with pytest.raises(ValueError, match=r"env: hanging_module:Any-v0 .* 2 s .*hanging_module.py:3"):
        make_spec(EnvConfig(env="hanging_module:Any-v0", frames_stacked=1))


def test_a_long_wait_for_the_probe_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(facts, "log", SimpleNamespace(info=lines.append))
    monkeypatch.setattr(facts, "PATIENCE", 0.1)
    make_spec(config("TestHanging-v1", where="nowhere"))
    assert any("TestHanging-v1" in line for line in lines)
