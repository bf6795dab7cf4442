"""The JavaScript client in Node: it plays, learns of ends and of broken connections, and follows what a server asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.fake_server import FakeServer, running

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


def run(scenario: str, url: str, *arguments: str) -> Any:
    """The result of a scenario of javascript_scenarios.js."""
    program = Path(__file__).parent / "javascript_scenarios.js"
    command = [str(NODE), "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", program, scenario, url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_episodes_are_played(server: FakeServer) -> None:
    assert run("episodes", server.url, "secret") == {"played": [4, 4, 4], "givenUp": 0, "agent": "random"}
    assert [message["type"] for message in server.messages] == ["reset", *["step"] * 4] * 3 + ["metric", "close"]
    assert server.messages[0] == {"type": "reset", "seat": 0, "observation": [0.5, -1]}
    assert server.messages[1]["info"] == {"level": 3}
    [hello] = server.hellos
    assert (hello["protocol"], hello["name"], hello["token"], hello["exploit"]) == (1, "Toy-v0", "secret", False)


def test_a_client_goes_on_after_a_busy_server_a_break_and_a_rotation(server: FakeServer) -> None:
    server.busy, server.drop_after, server.rotate_after = 1, [3], 3
    assert run("episodes", server.url) == {"played": [2, 4, 4], "givenUp": 1, "agent": "random"}
    assert len(server.hellos) == 3


def test_seats_share_a_connection(server: FakeServer) -> None:
    assert run("seats", server.url) == {"played": [3, 4, 5], "givenUp": 0}
    assert len(server.hellos) == 1
    assert server.frames < len(server.messages)  # one frame holds messages of several seats


def test_long_frames_pass_in_both_directions(server: FakeServer) -> None:
    server.act = lambda space: [0] * 40_000
    assert run("large", server.url) == {"action": 40_000}
    assert len(server.messages[0]["observation"]) == 20_000
    assert len(server.messages[1]["observation"]) == 70


def test_a_refusal_is_one_error(server: FakeServer) -> None:
    server.error_at = {3: "value"}
    message = "value: a test asked for this"
    assert run("failure", server.url) == {"name": "ServerError", "code": "value", "message": message}


def test_a_slow_environment_learns_that_the_run_is_over(server: FakeServer) -> None:
    server.error_at = {2: "finished"}
    assert run("slow", server.url)["code"] == "finished"


def test_a_refused_last_observation_is_an_error_of_the_next_call(server: FakeServer) -> None:
    server.error_at = {2: "value"}
    message = "value: a test asked for this"
    assert run("last", server.url) == {"failure": {"name": "ServerError", "code": "value", "message": message}, "played": 2}


def test_a_wrong_token_is_a_refusal(server: FakeServer) -> None:
    server.token = "secret"
    assert run("failure", server.url, "other")["code"] == "token"


def test_a_frame_over_the_servers_limit_is_a_refusal() -> None:
    server = FakeServer()
    server.most_bytes = 1000
    with running(server):
        assert run("oversize", server.url)["code"] == "size"


def test_a_value_that_json_lacks_rejects_its_own_call(server: FakeServer) -> None:
    expected = {"failures": ["TypeError", "TypeError"], "actions": ["number", "number"], "hello": "TypeError"}
    assert run("unwritable", server.url) == expected
    assert [message["type"] for message in server.messages] == ["reset", "reset", "step", "step", "close"]


def test_a_missing_server_is_an_error_once_the_patience_ends() -> None:
    message = "ws://127.0.0.1:1/connect: wanted a server of clients, got no connection"
    assert run("unreachable", "ws://127.0.0.1:1") == {"name": "Error", "message": message}


def test_wrong_calls_are_one_line(server: FakeServer) -> None:
    assert run("wrong", server.url)["lines"] == [
        "seat 0: wanted reset before step, got none",
        "seat: wanted 0 to 0, got 1",
        "url: wanted ws://HOST:PORT or wss://HOST:PORT, got host:1",
    ]
