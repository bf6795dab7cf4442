"""A reproducible run that is killed and resumed gives the same bits as one that was not."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from learner.feeding.feeder import BatchFeeder
from learner.metrics.summary import evaluation_lines
from learner.ranks.base import RankError
from learner.runs import resuming
from learner.runs.checkpoint import load_checkpoint, load_replay
from learner.runs.directory import RunDirectory, update_of
from tests.learner.runs.reproducible import (
    HALF,
    MIXTURES,
    assert_a_kill_changes_nothing,
    assert_same_end,
    play,
    play_until_killed,
    rows_of,
    settings_of,
)
from tests.learner.runs.support import make_checkpoint
from tests.support import REPOSITORY, catch_flags, run_main

PONG: dict[str, Any] = {
    "env": "PongNoFrameskip-v4",
    "network": "impala_shallow",
    "frame_scale_resolution": "42,42",
    "frames_stacked": 2,
    "sticky_actions": 0.25,
    "max_episode_frames": 150,
    "calibrate_input": False,
    "environment_max_steps": 480,
    "batch_size": 6,
    "unroll_length": 4,
    "return_window": 2,
}
"""Episodes that end within a few updates, and actions that the emulator repeats at random."""


def test_a_learner_that_fails_meanwhile_is_no_fault_of_the_saved_state() -> None:
    with pytest.raises(RankError, match="rank 1 is gone"), resuming._one_line("a hint"):
        raise RankError("rank 1 is gone")
    with pytest.raises(resuming.ResumeError, match="no such tensor; a hint"), resuming._one_line("a hint"):
        raise RuntimeError("no such tensor")


def test_returns_of_another_protocol_are_left_out(lines: list[str]) -> None:
    checkpoint = replace(make_checkpoint(), infos=[{"is_success": 1.0}])
    assert resuming.continued(checkpoint, dict(checkpoint.protocol)).returns == checkpoint.returns
    assert lines == []
    other = resuming.continued(checkpoint, {"sticky_actions": 0.5})
    assert (other.returns, other.infos, other.protocol) == ([], [], {"sticky_actions": 0.5})
    assert other.counters == checkpoint.counters
    assert len(lines) == 1


def test_the_returns_of_tasks_start_anew_with_those_of_the_run(tmp_path: Path, lines: list[str]) -> None:
    run = RunDirectory.create(tmp_path, "tasks")
    settings = {"env": "Catch-v0,Avoid-v0", "calibrate_input": False}
    play(run, environment_max_steps=320, **settings)
    first = load_checkpoint(run.checkpoint_paths()[-1])
    play(run, first, environment_max_steps=640, greedy=True, **settings)
    assert any(line.startswith("The mean return starts anew") for line in lines)
    for checkpoint in (first, load_checkpoint(run.checkpoint_paths()[-1])):
        assert 0 < len(checkpoint.returns) < 50
        assert sorted(chain(*checkpoint.task_returns)) == sorted(checkpoint.returns)


def test_a_run_that_stops_at_a_step_is_evaluated_there_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    settings = settings_of("queue")
    straight, broken = (RunDirectory.create(tmp_path, name) for name in ("straight", "broken"))
    play(straight, **settings)
    play(broken, stop_at_steps=300, eval_period=1000, eval_episodes=2, **settings)
    checkpoint = load_checkpoint(broken.checkpoint_paths()[-1])
    assert 300 <= checkpoint.counters.steps < 400
    assert [line["update"] for line in evaluation_lines(broken.evaluations)] == [checkpoint.counters.updates]
    replay = load_replay(broken.replay_path(checkpoint.counters.updates), checkpoint)
    play(broken, checkpoint, replay, eval_period=1000, eval_episodes=2, **settings)
    assert_same_end(straight, broken, interrupted=True)


@pytest.mark.parametrize("mixture", [*MIXTURES, "pong"])
def test_a_killed_and_resumed_run_gives_the_same_bits(mixture: str, tmp_path: Path) -> None:
    settings = {**settings_of("queue"), **PONG} if mixture == "pong" else settings_of(mixture)
    straight, broken = (RunDirectory.create(tmp_path, name) for name in ("straight", "broken"))
    play(straight, **settings)
    checkpoint, replay = play_until_killed(broken, **settings)
    assert checkpoint.counters.updates == HALF
    if mixture == "queue":
        assert replay["under_way"]["feeder"]["pending"]
    broken.metrics.write_text(broken.metrics.read_text() + rows_after(broken))
    play(broken, checkpoint, replay, **settings)
    assert load_checkpoint(broken.checkpoint_paths()[-1]).counters.updates >= 2 * HALF
    assert_same_end(straight, broken)


def test_a_core_resumes_with_the_same_bits(tmp_path: Path) -> None:
    """In the middle of episodes, whose memory is in no trajectory yet."""
    core = {"core": "lstm", "core_size": 16, "burn_in": 4, "unroll_length": 7, "frames_stacked": 2}
    settings = {**settings_of("attentive"), **core}
    assert_a_kill_changes_nothing(tmp_path, interrupted=True, **settings)


def test_a_resumed_run_gives_the_same_bits_with_frames_on_another_device(tmp_path: Path) -> None:
    """The learner's device is the CPU here, whatever device the replay names."""
    straight, broken = (RunDirectory.create(tmp_path, name) for name in ("straight", "broken"))
    settings = {**settings_of("fifo and reservoir"), "frames_stacked": 3}
    play(straight, **settings)
    before, after = (
        json.dumps(
            [entry if entry["type"] == "queue" else {**entry, "device": device} for entry in MIXTURES["fifo and reservoir"]]
        )
        for device in ("cuda", "cpu")
    )
    saved = play_until_killed(broken, **{**settings, "replay_parameters": before})
    play(broken, *saved, **{**settings, "replay_parameters": after})
    assert_same_end(straight, broken, interrupted=True)


def rows_after(run: RunDirectory) -> str:
    """A row as a run writes it between its last checkpoint and its death."""
    with run.metrics.open(newline="") as file:
        header, *rows = csv.reader(file)
    newest = dict(zip(header, rows[-1], strict=True))
    return ",".join({**newest, "steps": str(int(newest["steps"]) + 30), "updates": "99"}.values()) + "\r\n"


@pytest.mark.parametrize("update", [0, 7])
def test_a_signal_while_a_batch_is_drawn_loses_nothing(update: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first update too, when the replays are still filling."""
    settings = settings_of("fifo and reservoir")
    straight, broken = (RunDirectory.create(tmp_path, name) for name in ("straight", "broken"))
    play(straight, **settings)
    calls = 0

    def next_batch(self: BatchFeeder, should_stop: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == max(1, update):
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, should_stop)

    draw = BatchFeeder.next_batch
    with monkeypatch.context() as patch:
        patch.setattr(BatchFeeder, "next_batch", next_batch)
        play(broken, **settings)
    (path,) = broken.checkpoint_paths()
    assert update_of(path) == update
    checkpoint = load_checkpoint(path)
    play(broken, checkpoint, load_replay(broken.replay_path(update), checkpoint), **settings)
    assert_same_end(straight, broken, interrupted=True)


KILLED_AFTER_ONE = """
import os, signal, sys
from main import main
from learner.runs.saving import Saver
save = Saver.save
def save_then_die(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
Saver.save = save_then_die
sys.exit(main(sys.argv))
"""


@pytest.mark.random_play  # the killed program, another process, plays it in full
def test_a_killed_process_is_resumed_by_the_command_line(tmp_path: Path) -> None:
    settings = settings_of("fifo and reservoir")
    straight = RunDirectory.create(tmp_path, "straight")
    play(straight, **settings)
    program = [sys.executable, "-c", KILLED_AFTER_ONE, "--op_mode=train", f"--results_dir={tmp_path / 'broken'}"]
    killed = subprocess.run([*program, *catch_flags(**settings)], cwd=REPOSITORY, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    broken = RunDirectory((tmp_path / "broken" / "latest").resolve())
    assert broken.checkpoint_paths() == [broken.checkpoint_path(HALF)]
    broken.best.unlink(missing_ok=True)  # as if it had been killed just before that was done

    done = run_main("--op_mode=train_w_load", f"--load={broken.path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(broken.replay_path(HALF)) in done.stdout
    assert re.search(r"Replaying \d+ steps to restore the environments", done.stdout)
    assert "bit-identical" not in done.stdout
    assert_same_end(straight, broken)


SLOW_ENVIRONMENT = """
import sys, time
from main import main
from wrappers.toys.catch import Catch
step = Catch.step
def slow_step(*arguments):
    time.sleep(0.3)
    return step(*arguments)
Catch.step = slow_step
sys.exit(main(sys.argv))
"""


def test_a_signal_ends_the_replay_of_environments_and_changes_nothing(tmp_path: Path) -> None:
    """The replay would take more than a minute."""
    run = RunDirectory.create(tmp_path, "broken")
    run.write_config({}, ["main.py"], [])
    settings = settings_of("fifo and reservoir")
    play(run, **settings)
    before = {path: path.read_bytes() for path in run.checkpoints.iterdir()}
    rows = rows_of(run)
    flags = ["--op_mode=train_w_load", f"--load={run.path}", "--environment_max_steps=5000"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_ENVIRONMENT, *flags],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        try:
            assert program.stdout
            for line in program.stdout:
                if "Replaying" in line:
                    break
            time.sleep(0.5)
            program.send_signal(signal.SIGTERM)
            asked = time.monotonic()
            said, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    assert time.monotonic() - asked < 30
    assert program.returncode == 130, said
    (line,) = said.strip().splitlines()
    assert str(run.checkpoint_paths()[-1]) in line
    assert {path: path.read_bytes() for path in run.checkpoints.iterdir()} == before
    assert rows_of(run) == rows
