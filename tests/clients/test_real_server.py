"""The clients with the program's own server: values arrive as they were sent, and refusals are those of the protocol."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from gymnasium import spaces
from springbok_client import RemoteAgent, ServerError
from websockets.sync.client import connect

from tests.clients.browser import CHROMIUM, opened
from tests.clients.real_server import really_running
from tests.clients.test_javascript import NODE, run
from wrappers.served import ServedSpaces

IMAGE = spaces.Box(0, 255, (4, 3), np.uint8)
OBSERVATIONS = {
    "image": IMAGE,
    "numbers": spaces.Box(-1, 1, (2,), np.float32),
    "doubles": spaces.Box(-np.inf, np.array([1.0, 2.0]), dtype=np.float64),
    "choice": spaces.Discrete(4, start=2),
    "several": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(3),
    "parts": spaces.Dict({"image": IMAGE, "pair": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])}),
}
ACTIONS = {
    "choice": spaces.Discrete(3, start=5),
    "several": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(3),
    "numbers": spaces.Box(-2, 2, (1, 2), np.float32),
}
CARTPOLE = ServedSpaces(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))
TOY = ServedSpaces(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_arrive_as_they_were_sent(name: str, binary: bool) -> None:
    space = OBSERVATIONS[name]
    space.seed(3)
    sent = [space.sample() for _ in range(3)]
    with really_running(ServedSpaces(space, ACTIONS["choice"])) as (host, url):
        with RemoteAgent(url, space, ACTIONS["choice"], name="Toy-v0", binary=binary) as agent:
            agent.reset(sent[0])
            agent.step(sent[1], 0.5)
            agent.metric("level", [1, 2])
            assert agent.step(sent[2], -1, terminated=True) is None
        assert agent.given_up == 0
    outcomes = host.outcomes[0]
    assert all(map(same_values, (outcome.observation for outcome in outcomes), sent))
    assert [(outcome.reward, outcome.terminated) for outcome in outcomes] == [(0.0, False), (0.5, False), (-1.0, True)]
    assert (host.metrics, host.left) == ([("level", [1.0, 2.0])], [0])


def same_values(first: Any, second: Any) -> bool:
    """Equal numbers; the server has its own dtypes of whole numbers."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_values(first[name], second[name]) for name in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same_values, first, second))
    return np.array_equal(first, second)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_arrive_as_the_space_has_them(name: str) -> None:
    space, observation = ACTIONS[name], OBSERVATIONS["numbers"]
    server = really_running(ServedSpaces(observation, space))
    with server as (host, url), RemoteAgent(url, observation, space, name="Toy-v0") as agent:
        got = [agent.reset(observation.sample()), *(agent.step(observation.sample(), 0) for _ in range(3))]
    assert all(space.contains(action) for action in got)
    assert all(map(np.array_equal, got, host.actions))


def test_refusals_are_those_of_the_protocol(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with really_running(TOY, token_file=str(token)) as (_, url):
        for given, other, observation, code in [
            ("wrong", TOY.action, [0, 0], "token"),
            ("secret", spaces.Discrete(4), [0, 0], "spaces"),
            ("secret", TOY.action, [0, np.nan], "value"),
        ]:
            agent = RemoteAgent(url, TOY.observation, other, name="Toy-v0", token=given)
            with agent, pytest.raises(ServerError) as error:
                agent.reset(observation)
            assert error.value.code == code


def test_a_client_rotates_when_the_server_asks() -> None:
    server = really_running(TOY, client_seconds=0.05)
    with server as (host, url), RemoteAgent(url, TOY.observation, TOY.action, name="Toy-v0") as agent:
        until = time.monotonic() + 10
        while len(host.sessions) < 2 and time.monotonic() < until:
            agent.reset([0, 0])
            agent.step([0, 0], 1, truncated=True)
        assert agent.given_up == 0
    assert host.left == list(range(len(host.sessions)))


def make_certificate(folder: Path) -> dict[str, str]:
    """A certificate of 127.0.0.1 that signs itself. Returns the settings that name it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = made.add_extension(names, critical=False).sign(key, SHA256())
    (folder / "cert.pem").write_bytes(signed.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {"tls_cert": str(folder / "cert.pem"), "tls_key": str(folder / "key.pem")}


def test_a_client_plays_over_tls_and_trusts_no_other_certificate(tmp_path: Path) -> None:
    given = make_certificate(tmp_path)
    with really_running(TOY, **given) as (host, url):
        with RemoteAgent(url, TOY.observation, TOY.action, name="Toy-v0", ca_file=given["tls_cert"]) as agent:
            agent.reset([0, 0])
            assert agent.step([0, 0], 1, truncated=True) is None
        assert host.outcomes[0][1].reward == 1
        stranger = RemoteAgent(url, TOY.observation, TOY.action, name="Toy-v0", patience=0)
        with stranger, pytest.raises(ConnectionError, match="certificate"):
            stranger.reset([0, 0])


def test_a_run_that_is_over_ends_the_block_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    plays = threading.Event()
    with really_running(TOY) as (host, url):

        def end() -> None:
            plays.wait(10)
            host.server.is_finished = True
            host.loop.call_soon_threadsafe(host.ended.set)

        ender = threading.Thread(target=end)
        ender.start()
        with RemoteAgent(url, TOY.observation, TOY.action, name="Toy-v0") as agent:
            while True:
                agent.reset([0, 0])
                agent.step([0, 0], 1, truncated=True)
                plays.set()
        ender.join()
    # The server is in this process too, and logs as well.
    told = [record.getMessage() for record in caplog.records if record.name == "springbok_client"]
    assert told == [f"{url}: the run is over"]


def test_no_client_is_taken_when_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    with really_running(TOY, least_free_megabytes=1e7) as (host, url), connect(f"{url}/connect") as socket:
        answer = json.loads(socket.recv(timeout=5))
        assert (answer["type"], host.sessions) == ("busy", [])


@pytest.mark.parametrize("begun", [b"", b"GET /connect HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_without_a_request_ends(begun: bytes) -> None:
    server = really_running(TOY, client_timeout=0.2)
    with server as (_, url), create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as silent:
        silent.sendall(begun)
        silent.settimeout(10)
        assert silent.recv(100) == b""


def test_pages_of_other_servers_may_load_the_client() -> None:
    with really_running(TOY) as (_, url):
        for path, allowed in (("springbok.js", "*"), ("status", None)):
            with urlopen(f"{url.replace('ws:', 'http:')}/{path}", timeout=5) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == allowed


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_javascript_plays() -> None:
    with really_running(TOY) as (host, url):
        assert run("episodes", url) == {"played": [4, 4, 4], "givenUp": 0, "agent": "random"}
    assert [outcome.terminated for outcome in host.outcomes[0]] == [False, False, False, False, True] * 3
    assert (host.metrics, host.left) == ([("level", [1.0, 2.0])], [0])


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_plays() -> None:
    with really_running(CARTPOLE) as (host, url), opened(url.replace("ws:", "http:")) as page:
        page.wait_for("document.querySelector('#state')?.className === ''")
        page.run("play.click()")
        page.wait_for("document.querySelector('#score').innerText.startsWith('episode ')")
        page.run("play.click()")
        assert page.problems == []
    assert any(outcome.terminated for outcome in host.outcomes[0])
