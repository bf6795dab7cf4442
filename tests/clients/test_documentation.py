"""The examples of docs/clients.md play."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.fake_server import FakeServer, running
from tests.pages import BLOCK
from tests.support import REPOSITORY

NODE = shutil.which("node")
URL = "ws://127.0.0.1:7001"
LAST = 400  # messages after which the server ends the example


def blocks(kind: str) -> list[tuple[str | None, str]]:
    """File and text of each block of this language."""
    page = (REPOSITORY / "docs" / "clients.md").read_text()
    return [(block["path"], block["text"]) for block in BLOCK.finditer(page) if block["kind"] == kind]


def play(folder: Path, text: str, *command: str) -> FakeServer:
    """Run an example until the server refuses a message. Returns the server."""
    with running(FakeServer()) as server:
        server.error_at = {LAST: "rate"}
        program = folder / command[-1]
        assert URL in text
        program.write_text(text.replace(URL, server.url))
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "clients" / "python")}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert "ServerError" in done.stderr, done.stderr
        assert "rate: a test asked for this" in done.stderr
    return server


def test_the_robot_plays_in_under_15_lines(tmp_path: Path) -> None:
    (robot, robot_text), (name, text), _ = blocks("python")
    assert (robot, name) == ("my_robot.py", "play.py")
    assert len(text.splitlines()) < 15
    (tmp_path / "my_robot.py").write_text(robot_text)
    server = play(tmp_path, text, sys.executable, "play.py")
    assert [message["type"] for message in server.messages].count("reset") == 2
    assert sum(message.get("truncated", False) for message in server.messages) == 1


def test_eight_environments_share_a_connection(tmp_path: Path) -> None:
    *_, (_, text) = blocks("python")
    server = play(tmp_path, text, sys.executable, "several.py")
    assert {message["seat"] for message in server.messages} == set(range(8))
    assert any(message.get("terminated") for message in server.messages)
    assert server.frames < LAST / 4


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_game_plays_in_under_30_lines(tmp_path: Path) -> None:
    [(name, text)] = blocks("javascript")
    assert name == "game.js"
    assert len(text.splitlines()) < 30
    for file in ("springbok.js", "package.json"):
        shutil.copy(REPOSITORY / "clients" / "javascript" / file, tmp_path)
    server = play(tmp_path, text, str(NODE), "game.js")
    ends = [message for message in server.messages if message.get("terminated") or message.get("truncated")]
    assert len(ends) > 3
    assert all((message["reward"] == 1) is message["terminated"] for message in ends)
