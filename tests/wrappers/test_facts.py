"""The child process that tries an environment out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.wrappers.environments import HERE
from wrappers import EnvConfig, facts, make_spec


def config(env: str, **arguments: object) -> EnvConfig:
    """env: an id of the test environments. arguments: of the environment."""
    return EnvConfig(env=f"{HERE}:{env}", frames_stacked=1, env_args=json.dumps(arguments))


def test_the_probe_does_not_wait_for_processes_that_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "PROBE_SECONDS", 30.0)
    left = tmp_path / "left"
    try:
        assert make_spec(config("TestLeaving-v1", path=str(left))).frame_shape == (3,)
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
