"""The first signal asks a program to stop, and a later one ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from learner.signals import SAME_REQUEST
from tests.support import REPOSITORY

PROGRAM = """
import sys, time
from learner.signals import StopSignals
with StopSignals(at_once=lambda: print("at once", flush=True), first="first") as signals:
    print("ready", flush=True)
    while not signals.requested:
        time.sleep(0.01)
    print("asked", flush=True)
    time.sleep(5)
"""

Program = subprocess.Popen[str]


@pytest.fixture
def program() -> Iterator[Program]:
    """A program that is slow to stop."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def line_of(program: Program) -> str:
    assert program.stdout
    return program.stdout.readline().strip()


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_signals_of_the_same_moment_are_one_request(program: Program, again: signal.Signals) -> None:
    program.send_signal(signal.SIGTERM)
    assert line_of(program) == "asked"
    program.send_signal(again)
    time.sleep(SAME_REQUEST / 2)
    assert program.poll() is None


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_later_signal_ends_the_program_at_once(program: Program, number: signal.Signals) -> None:
    program.send_signal(number)
    assert line_of(program) == "asked"
    time.sleep(2 * SAME_REQUEST)
    program.send_signal(number)
    assert line_of(program) == "at once"
    assert program.wait(5) == 128 + number


def test_an_ignored_hangup_stays_ignored() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as `nohup` does
    ) as process:
        assert line_of(process) == "ready"
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGTERM)
        assert line_of(process) == "asked"
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(2 * SAME_REQUEST)
        assert process.poll() is None
        process.kill()
