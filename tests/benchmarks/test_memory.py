"""The memory benchmark on small replays and processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import memory
from benchmarks.memory import memory_of, replay_figures
from learner.metrics.hardware import family_of
from learner.plan import make_plan
from learner.settings.config import Config
from main import prepare
from tests.support import small_config


def test_replays_are_measured_on_real_trajectories() -> None:
    config = small_config(frames_stacked=4)
    figures = replay_figures(config, 1000)
    contract = make_plan(config).contract
    assert figures["steps"] == 1280
    assert figures["plain_bytes_per_step"] > (contract.bytes_per_trajectory - 4 * 50) / contract.unroll_length
    assert figures["plain_gigabytes_per_million_steps"] == pytest.approx(figures["plain_bytes_per_step"] / 1000)
    assert all(value > 0 for value in figures.values())


def test_the_memory_of_a_process_and_its_children_is_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getpid(), child.pid} <= set(family_of(os.getpid()))
        assert 0 < memory_of(os.getpid())["Pss"] <= memory_of(os.getpid())["Rss"]
    finally:
        child.communicate(b"\n")
    assert child.pid not in family_of(os.getpid())
    assert memory_of(child.pid) == {}


@pytest.mark.parametrize(
    ("env", "arguments", "wanted"),
    [
        (None, ["--preset=quick"], "Catch-v0"),
        ("BreakoutNoFrameskip-v4", ["--preset=pong_fast"], "BreakoutNoFrameskip-v4"),
        (None, ["--protocol=machado"], "PongNoFrameskip-v4"),
    ],
)
def test_replays_and_program_have_the_same_settings(
    env: str | None, arguments: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[Config] = []
    monkeypatch.setattr(memory, "replay_figures", lambda config, _: filled.append(config) or {})
    monkeypatch.setattr(memory, "program_figures", lambda settings, _: {})
    settings = memory.measure(env, arguments, 1, 1.0)["settings"]
    program = prepare(["main.py", *settings]).config
    assert (filled[0].env, filled[0].network, filled[0].replays) == (program.env, program.network, program.replays)
    assert program.env.env == wanted
