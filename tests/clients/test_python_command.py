"""`python -m springbok_client` plays environments of Gymnasium, and says what is wrong in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from springbok_client.__main__ import main

from tests.clients.fake_server import FakeServer, running
from tests.support import REPOSITORY

PACKAGE = """
import gymnasium
import numpy as np

class Toy(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({
        "position": gymnasium.spaces.Box(0, 9, (1,), np.float32), "action_mask": gymnasium.spaces.MultiBinary(3)
    })
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length=5):
        self.length = length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.played = 0
        return self._observe(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.played += 1
        return self._observe(), 1.0, self.played == self.length, False, {"played": self.played}

    def _observe(self):
        return {"position": np.array([self.played], np.float32), "action_mask": np.array([1, 0, 1], np.int8)}

gymnasium.register("Toy-v0", entry_point=Toy, disable_env_checker=True)
"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user, whose package has the name of one of Springbok's."""
    package = tmp_path / "agents"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    return tmp_path


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "springbok_client", *flags]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "clients" / "python")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_environment_of_a_package_called_agents_is_played(server: FakeServer, folder: Path) -> None:
    flags = (f"--url={server.url}", "--seats=2", "--episodes=6", "--env_args", '{"length": 4}', "--json", "--seed=3")
    with started(folder, "agents:Toy-v0", *flags) as process:
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    last = json.loads(printed.splitlines()[-1])
    assert (last["episodes"], last["steps"], last["return_mean"], last["given_up"]) == (6, 24, 4.0, 0)
    [hello] = server.hellos
    assert (hello["seats"], hello["name"], hello["spaces"]["mask"]) == (2, "agents:Toy-v0", False)
    assert set(hello["spaces"]["observation"]["spaces"]) == {"position", "action_mask"}  # where the server finds the mask
    steps = [message for message in server.messages if message["type"] == "step"]
    assert {step["observation"]["action_mask"]["data"] for step in steps} == {b"\1\0\1"}
    assert {step["info"]["played"] for step in steps} == {1, 2, 3, 4}


def test_ctrl_c_ends_with_the_last_numbers(server: FakeServer, folder: Path) -> None:
    with started(folder, "agents:Toy-v0", f"--url={server.url}") as process:
        while len(server.messages) < 20 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert printed.splitlines()[-1].startswith("steps=")
    assert server.messages[-1] == {"type": "close"}


CARTPOLE = "CartPole-v1"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--url=ws://127.0.0.1:1"], "the following arguments are required: env"),
        ([CARTPOLE, "--seats=0"], "argument --seats: wanted a whole number >= 1, got '0'"),
        ([CARTPOLE, "--env_args=3"], "argument --env_args: wanted an object of JSON, got '3'"),
        ([CARTPOLE, "--url=127.0.0.1:1"], "url: wanted ws://HOST:PORT or wss://HOST:PORT, got '127.0.0.1:1'"),
        ([CARTPOLE, "--token_file=nowhere"], "token_file: wanted a file that can be read, got nowhere"),
        ([CARTPOLE, "--ca_file=nowhere"], "ca_file: wanted a file of certificates (PEM), got nowhere ([Errno 2] No such file"),
        ([CARTPOLE, "--ca_file", __file__], f"ca_file: wanted a file of certificates (PEM), got {__file__} ("),
        ([CARTPOLE, "--patience=nan"], "argument --patience: wanted a finite number >= 0, got 'nan'"),
        ([CARTPOLE, "--patience=inf"], "argument --patience: wanted a finite number >= 0, got 'inf'"),
        ([CARTPOLE, "--patience=-1"], "argument --patience: wanted a finite number >= 0, got '-1'"),
        ([CARTPOLE, "--patience=soon"], "argument --patience: wanted a finite number >= 0, got 'soon'"),
        ([CARTPOLE, "--env_args", '{"colour": 3}'], "env: wanted an environment of Gymnasium, got CartPole-v1 ("),
        ([CARTPOLE, "--env_args", '{"max_episode_steps": -3}'], "env: wanted an environment of Gymnasium, got CartPole-v1 ("),
        ([CARTPOLE, "--seed=-1"], "argument --seed: wanted a whole number >= 0, got '-1'"),
        (["nowhere:Toy-v0"], "env: wanted an environment of Gymnasium, got nowhere:Toy-v0 (No module named 'nowhere'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_flags_are_one_line(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(flags) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert printed.err.startswith(f"springbok_client: {line}")


class Sequences(gymnasium.Env[Any, Any]):
    """An environment whose observations the protocol lacks."""

    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return (), {}


def test_a_space_that_the_protocol_lacks_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    gymnasium.register("Sequences-v0", Sequences, disable_env_checker=True)
    try:
        assert main(["Sequences-v0", "--url=ws://127.0.0.1:1", "--patience=0"]) == 2
    finally:
        del gymnasium.registry["Sequences-v0"]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("springbok_client: observation_space: wanted a space of Box, ")
    assert "got Sequence(Discrete(2)" in line


def code_of(flags: list[str]) -> Any:
    try:
        return main(flags)
    except SystemExit as ended:
        return ended.code


def test_a_refusal_is_one_line(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.token = "secret"
    assert main([CARTPOLE, f"--url={server.url}"]) == 2
    assert capsys.readouterr().err == "springbok_client: token: token: wanted the server's, got none or another one\n"


def test_a_missing_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([CARTPOLE, "--url=ws://127.0.0.1:1", "--patience=0"]) == 1
    assert capsys.readouterr().err == "springbok_client: ws://127.0.0.1:1: Connection refused\n"
