"""The output of libraries goes to a run's log, each message once. The user sees the program's own lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from learner import library_output
from learner.library_output import COMMAND, TRACEBACK, Messages
from learner.runs.directory import RunDirectory
from tests.support import CATCH, REPOSITORY, run_program
from tests.wrappers.environments import HERE

NOISE = ("pybullet build", "no sound card")


def test_each_message_comes_once_however_it_is_cut() -> None:
    messages, found = Messages(), []
    for byte in b"no card 1\nno card 0x7f\nother\nno card\n":
        found += messages.feed(bytes([byte]))
    assert [*found, *messages.flush()] == ["no card 1", "other", "no card"]
    assert messages.repeated() == ["2 times: no card #"]


def test_a_traceback_is_one_message_and_keeps_all_its_lines() -> None:
    frames = f'{TRACEBACK}\n  File "a.py", line 1, in f\n    f()\n'
    messages = Messages()
    found = messages.feed(f"{frames}ValueError: a\n{frames}ValueError: b\nlast\n".encode())
    assert found == [f"{frames}ValueError: a", f"{frames}ValueError: b"]
    assert messages.flush() == ["last"]


def test_commands_are_never_part_of_a_message() -> None:
    messages = Messages()
    assert messages.feed(f"half\n{COMMAND}log a b\n{COMMAND}end\n".encode()) == ["half", f"{COMMAND}log a b", f"{COMMAND}end"]


def test_a_library_whose_messages_all_differ_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_output, "MOST_MESSAGES", 5)
    messages = Messages()
    assert len(messages.feed("".join(f"step {'x' * number}\n" for number in range(9)).encode())) == 5


def test_a_run_shows_no_messages_of_libraries_and_its_log_has_each_once(tmp_path: Path) -> None:
    given = {**CATCH, "env": f"{HERE}:TestHanging-v1", "env_args": json.dumps({"noisy": True}), "results_dir": tmp_path}
    given |= {"op_mode": "train", "environment_max_steps": 400, "eval_period": 0}
    done = run_program(*(f"--{name}={value}" for name, value in given.items()))
    assert (done.returncode, done.stderr) == (0, "")
    assert "steps" in done.stdout
    log = RunDirectory((tmp_path / "latest").resolve()).log.read_text()
    for noise in NOISE:
        assert noise not in done.stdout
        first, repeated = (line for line in log.splitlines() if noise in line)
        assert "times: " in repeated
        assert "times: " not in first


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT),  # as native code crashes
        ("sys.exit(3)", 3),  # without a log
    ],
)
def test_last_words_are_shown(how: str, code: int) -> None:
    program = (
        "import os, signal, sys; from learner.console import apart_from_libraries, standard_output\n"
        "with apart_from_libraries():\n"
        f"    os.write(2, b'the GPU is gone'); print('ours', file=standard_output()); {how}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (code, "ours\n", "the GPU is gone\n")
