"""The server's side of connections: which pages may connect, frames that are too large, an answer that cannot be sent."""

from __future__ import annotations

import asyncio
import json
import math
import time
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serve.app import ClientServer, send_json
from serve.settings import ServerConfig
from tests.clients.real_server import really_running
from tests.serve.test_session import CARTPOLE, HELLO, RESET, STEP, FakeHost
from wrappers.served import read_spaces


def answers(scope: dict[str, Any], *events: dict[str, Any], acts: bool = True) -> list[dict[str, Any]]:
    """The events that a server sends. acts: whether it answers `POST /act`, which it does with status 200."""
    waiting, sent = [{"type": "websocket.connect"}, *events], list[dict[str, Any]]()

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(event: Any) -> None:
        sent.append(event)

    async def act(scope: Any, receive: Any, send: Any) -> None:
        await send_json(send, 200, {})

    server = ClientServer(FakeHost(read_spaces(CARTPOLE), []), ServerConfig(), dict, act if acts else None)
    asyncio.run(server(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        (None, True),
        ("http://127.0.0.1:9", True),
        ("http://localhost:9", True),
        ("http://[::1]:9", True),
        ("http://robots.example:7001", False),
        ("https://other.example", False),
        ("null", False),
        ("http://[::1", False),
    ],
)
def test_pages_of_other_places_may_not_play(origin: str | None, *, good: bool) -> None:
    """Nor may a page whose own name leads to this machine, which makes Host and Origin equal."""
    headers = [(b"host", b"robots.example:7001")] + ([(b"origin", origin.encode())] if origin else [])
    asked: dict[str, Any] = {"path": "/connect", "method": "POST", "headers": headers}
    sent = answers({"type": "websocket", **asked}, {"type": "websocket.disconnect"})
    assert (sent[0]["type"] == "websocket.accept") is good
    assert answers({"type": "http", **asked, "path": "/act"})[0]["status"] == (200 if good else 403)


@pytest.mark.parametrize(
    ("method", "acts", "status", "line"),
    [
        ("GET", True, 405, "/act: wanted POST, got GET"),
        ("GET", False, 404, "wanted /, /health, /spaces or /status"),
        ("POST", False, 404, "wanted /, /health, /spaces or /status"),
    ],
)
def test_act_is_a_request_of_policy_servers_by_post(method: str, *, acts: bool, status: int, line: str) -> None:
    start, body = answers({"type": "http", "path": "/act", "method": method, "headers": []}, acts=acts)
    assert (start["status"], json.loads(body["body"])["error"]["message"]) == (status, line)


def test_the_address_of_a_server_is_a_url() -> None:
    assert ServerConfig(bind="127.0.0.1:7001").url == "ws://127.0.0.1:7001"
    for bind in ("::1:7001", "[::1]:7001"):
        assert ServerConfig(bind=bind, tls_cert="some.pem").url == "wss://[::1]:7001"


def connected(server: ClientServer, *frames: Any) -> list[Any]:
    """The messages with which a server answers these frames of one connection."""
    sent: list[Any] = []

    async def talk() -> None:
        events: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        events += [
            {"type": "websocket.receive", "bytes": frame if isinstance(frame, bytes) else msgpack.packb(frame)}
            for frame in frames
        ]

        async def receive() -> Any:
            await asyncio.sleep(0.01)
            return events.pop(0) if events else {"type": "websocket.disconnect"}

        async def send(event: Any) -> None:
            if content := event.get("bytes"):
                found = msgpack.unpackb(content)
                sent.extend(found if isinstance(found, list) else [found])
            elif "text" in event:
                raise AssertionError(f"wanted bytes, got {event['text']}")

        await asyncio.wait_for(server({"type": "websocket", "path": "/connect", "headers": []}, receive, send), 5)

    asyncio.run(talk())
    return sent


METRIC = {"type": "metric", "name": "x", "value": 1}


@pytest.mark.parametrize(
    ("rate", "frames", "code"),
    [
        (0.01, [HELLO, RESET, [STEP, METRIC, METRIC]], None),
        (0.01, [{**HELLO, "seats": 3}, [{**RESET, "seat": seat} for seat in range(3)] * 2], None),
        (5.0, [HELLO, [METRIC] * 50], "rate"),
        (5.0, [HELLO, *[[]] * 50], "rate"),
        (60.0, [HELLO, [METRIC] * 50], None),
    ],
)
def test_the_rate_counts_messages_of_each_seat(rate: float, frames: list[Any], code: str | None) -> None:
    host = FakeHost(read_spaces(CARTPOLE), [0, 1] * 9)
    sent = connected(ClientServer(host, ServerConfig(client_rate=rate), dict), *frames)
    assert sent[0]["type"] == "welcome"
    assert sent[-1].get("code") == code


def test_an_error_of_the_first_frame_has_its_form() -> None:
    (sent,) = connected(ClientServer(FakeHost(read_spaces(CARTPOLE), []), ServerConfig(), dict), b"\xc1")
    assert sent["code"] == "message"


def test_clients_that_find_no_free_seat_count_as_refused() -> None:
    server = ClientServer(FakeHost(read_spaces(CARTPOLE), []), ServerConfig(), dict)
    assert connected(server, {**HELLO, "seats": 9})[0]["type"] == "busy"
    assert server.status()["refused"] == 1


def test_the_page_has_json_whatever_clients_play() -> None:
    server = ClientServer(
        FakeHost(read_spaces(CARTPOLE), []), ServerConfig(), lambda: {"curve": [[1, math.inf]], "mean": math.nan}
    )
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    asyncio.run(server({"type": "http", "path": "/status", "method": "GET", "headers": []}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    found = json.loads(sent[1]["body"], parse_constant=pytest.fail)
    assert (found["curve"], found["mean"]) == ([[1, None]], None)


def test_a_connection_ends_if_its_answer_cannot_be_sent() -> None:
    host = FakeHost(read_spaces(CARTPOLE), [object()])  # no action that JSON has
    server = ClientServer(host, ServerConfig(), dict)
    sent: list[Any] = []

    async def talk() -> None:
        events = [
            {"type": "websocket.connect"},
            *({"type": "websocket.receive", "text": json.dumps(each)} for each in (HELLO, RESET)),
        ]

        async def receive() -> Any:
            if events:
                return events.pop(0)
            await asyncio.sleep(60)

        async def send(event: Any) -> None:
            sent.append(event["type"])

        await asyncio.wait_for(server({"type": "websocket", "path": "/connect", "headers": []}, receive, send), 5)

    asyncio.run(talk())
    assert not server.connections
    assert ("leave", 10) in host.calls


def test_a_frame_that_is_too_large_is_refused() -> None:
    with really_running(read_spaces(CARTPOLE), client_megabytes=0.01) as (_, url):
        for frame in ("x" * 10_001, b"x" * 19_000, "é" * 5_000 + "x"):  # a letter with an accent takes two bytes
            with connect(f"{url}/connect") as client:
                client.send(frame)
                assert json.loads(client.recv(timeout=5))["code"] == "size"
        with connect(f"{url}/connect") as client:
            client.send("x" * 20_001)
            with pytest.raises(ConnectionClosed, match="1009"):
                client.recv(timeout=5)


def test_a_server_that_waits_for_its_first_client_does_not_make_up_spaces() -> None:
    host = FakeHost(read_spaces(CARTPOLE), [])
    server = ClientServer(host, ServerConfig(), dict)
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def ask() -> tuple[int, Any]:
        sent.clear()
        await server({"type": "http", "path": "/spaces", "method": "GET", "headers": []}, asyncio.Event().wait, send)  # type: ignore[arg-type]
        return sent[0]["status"], json.loads(sent[1]["body"])

    status, body = asyncio.run(ask())
    assert (status, body["action"]["n"]) == (200, 2)
    host.waits = True
    status, body = asyncio.run(ask())
    assert (status, body["error"]["code"]) == (503, "waiting")
    assert (b"retry-after", b"1") in sent[0]["headers"]


@pytest.mark.parametrize(("sent", "ends"), [(0.0, False), (20.0, True)])
def test_a_client_is_not_silent_while_the_server_thinks(sent: float, *, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """sent: seconds since the last answer. The client's last message came long ago in both cases."""
    monkeypatch.setattr("serve.app.CHECK_SECONDS", 0.0)
    now, ended = time.monotonic(), list[Any]()
    session = SimpleNamespace(is_waited_for=True, places=[0])
    server = ClientServer(FakeHost(read_spaces(CARTPOLE), []), ServerConfig(client_timeout=10.0), dict)
    times = {"began": now, "heard": now - 30.0, "sent": now - sent}
    connection = SimpleNamespace(session=session, end=ended.append, asked_to_rotate=False, **times)
    server.connections = cast(Any, [connection])
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(server.watch(), 0.05))
    assert bool(ended) is ends
