"""The memory benchmark measures what it says, in small."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.memory import memory_of, replay_figures
from learner.config import make_contract
from learner.hardware import family_of
from tests.support import small_config
from wrappers import make_spec


def test_replays_are_measured_on_real_play() -> None:
    config = small_config(frames_stacked=4)
    figures = replay_figures(config, 1000)
    contract = make_contract(config, make_spec(config.env))
    assert figures["steps"] == 1280
    assert figures["plain_bytes_per_step"] > (contract.bytes_per_trajectory - 4 * 50) / contract.unroll_length
    assert figures["plain_gigabytes_per_million_steps"] == pytest.approx(figures["plain_bytes_per_step"] / 1000)
    assert all(value > 0 for value in figures.values())


def test_a_process_and_its_children_are_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getpid(), child.pid} <= set(family_of(os.getpid()))
        assert 0 < memory_of(os.getpid())["Pss"] <= memory_of(os.getpid())["Rss"]
    finally:
        child.communicate(b"\n")
    assert child.pid not in family_of(os.getpid())
    assert memory_of(child.pid) == {}
