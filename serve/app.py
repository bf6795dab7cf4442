"""The server as an ASGI application: WebSockets of clients, and the pages and requests of HTTP. Uvicorn runs it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serve.frames import ProtocolError, pack
from serve.memory import free_memory
from serve.session import Host, Session
from serve.settings import ServerConfig, is_local

log = logging.getLogger("springbok")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Request = Callable[[Scope, Receive, Send], Awaitable[None]]

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "/": (ROOT / "serve/page/index.html", "text/html; charset=utf-8"),
    "/page.js": (ROOT / "serve/page/page.js", "text/javascript; charset=utf-8"),
    "/cartpole.js": (ROOT / "serve/page/cartpole.js", "text/javascript; charset=utf-8"),
    "/page.css": (ROOT / "serve/page/page.css", "text/css; charset=utf-8"),
    "/springbok.js": (ROOT / "clients/javascript/springbok.js", "text/javascript; charset=utf-8"),
}
"""Path of a request -> file, and its type. No part of a request becomes a name of a file."""
FOR_OTHER_PAGES = ("/springbok.js",)
"""Scripts that a page of another server may load as a module."""
CHECK_SECONDS = 0.5  # between two looks for clients that are silent
SPEED_LOOKS = 20  # that the speed is measured over
FEW_MESSAGES = 8
"""Messages of each seat that may come at once, however small the rate is: hello, then a step with a reset and metrics."""
ROUNDING = 1e-9  # of seconds in the bucket of messages
BUSY_SECONDS = 2.0  # after which a client that found no room comes again, at least
POLICY_VIOLATION = 1008
SEND_SECONDS = 10.0
"""For a client to take what was sent to it. Its frames wait in memory until then."""


class Connection:
    """One WebSocket. It reads frames into its session, and a task of its own writes the answers."""

    def __init__(self, server: ClientServer, receive: Receive, send: Send) -> None:
        self._server = server
        self._receive, self._send = receive, send
        self._wakes = asyncio.Event()
        self.session = Session(server.host, self._wakes.set, server.token, count=self._count)
        self.began = self.heard = self.sent = time.monotonic()
        self.asked_to_rotate = False
        self._budget, self._counted = math.inf, self.began

    async def run(self) -> None:
        """Serve the client until one of both ends the connection."""
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and isinstance(error := reader.exception(), ProtocolError):
                self._refuse(error)
            elif writer.done() and (failure := writer.exception()):  # the client would wait for ever
                log.warning("client %s: its answer could not be sent: %s", self.session.name, failure)
        finally:
            reader.cancel()
            self._server.refused += self.session.found_no_room
            self.session.end()
            self._wakes.set()
            # The client may be gone, whatever form that takes. An error of the reader is not one of the server.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(writer, SEND_SECONDS)

    def end(self, error: ProtocolError) -> None:
        """End the connection from outside of its own task."""
        self._refuse(error)
        self.session.end()
        self._wakes.set()

    def _refuse(self, error: ProtocolError) -> None:
        log.debug("client %s: %s: %s", self.session.name or "without a name", error.code, error)
        self.session.refuse(error)

    async def _read(self) -> None:
        while not self.session.closed:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            self.heard = time.monotonic()
            text = event.get("text")
            frame = text if text is not None else event.get("bytes") or b""
            self._check_size(frame)
            self.session.receive(frame)

    def _check_size(self, frame: str | bytes) -> None:
        """Raise ProtocolError for a frame that is too large."""
        most = self._server.config.most_bytes
        if 4 * len(frame) <= most:  # a character takes four bytes at most, and encoding takes time
            return
        if (size := len(frame.encode() if isinstance(frame, str) else frame)) > most:
            raise ProtocolError("size", f"frame: wanted at most {most} bytes, got {size}")

    def _count(self) -> None:
        """Take a message out of the bucket, which is measured in seconds of messages. Raises ProtocolError."""
        rate = self._server.config.client_rate
        if not rate:
            return
        # The bucket holds one second, or the few messages of each seat that a client may send together.
        most = max(1.0, FEW_MESSAGES / rate)
        self._budget = min(most, self._budget + self.heard - self._counted)
        self._counted = self.heard
        self._budget -= 1 / (rate * max(1, len(self.session.places)))
        if self._budget < -ROUNDING:
            raise ProtocolError("rate", f"wanted at most {rate:g} messages a second of each seat, got more")

    async def _write(self) -> None:
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            if frame := self.session.frame():
                event: dict[str, Any] = {"type": "websocket.send"}
                event["bytes" if isinstance(frame, bytes) else "text"] = frame
                await self._send(event)
                self.sent = time.monotonic()
            if self.session.closed:
                with contextlib.suppress(Exception):  # the client was faster
                    await self._send({"type": "websocket.close", "code": POLICY_VIOLATION})
                return


class ClientServer:
    """All connections of a server.

    Args:
        host: acts for the clients.
        config: of the server.
        status: the numbers that the page shows, besides those that the server knows.
        act: answers `POST /act`; None where there is no such request.
    """

    def __init__(
        self, host: Host, config: ServerConfig, status: Callable[[], Mapping[str, Any]], act: Request | None = None
    ) -> None:
        self.host = host
        self.config = config
        self.token = config.read_token()
        self.connections: set[Connection] = set()
        self.refused = 0  # connections that found no room
        self.is_finished = False  # the run is over, so that no client need come again
        self._status = status
        self._act = act
        self._began = time.monotonic()
        self._looks: deque[tuple[float, int]] = deque(maxlen=SPEED_LOOKS)  # when, and how many steps
        self._look()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection or a request, as ASGI wants it."""
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] != "/connect" or not (self.token or is_from_this_machine(scope)):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        await send({"type": "websocket.accept"})
        if len(self.connections) >= self.config.max_clients or free_memory() < 1e6 * self.config.least_free_megabytes:
            self.refused += 1
            await send({"type": "websocket.send", "text": pack({"type": "busy", "retry_after": busy_seconds()}, binary=False)})
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        connection = Connection(self, receive, send)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/act" and self._act:
            await self._answer_act(self._act, scope, receive, send)
        elif method not in ("GET", "HEAD") and path != "/act":
            await send_json(send, 405, {"error": {"code": "message", "message": f"{path}: wanted GET, got {method}"}})
        elif path in FILES and FILES[path][0].is_file():
            file, kind = FILES[path]
            headers = ((b"access-control-allow-origin", b"*"),) if path in FOR_OTHER_PAGES else ()
            await send_body(send, 200, kind, file.read_bytes(), headers)
        elif path == "/health":
            await send_json(send, 200, {"status": "ok", "agent": self.host.agent, "clients": len(self.connections)})
        elif path == "/spaces":
            if self.host.waits:
                line = "the server waits for its first client, which tells the spaces"
                await send_json(send, 503, {"error": {"code": "waiting", "message": line}}, ((b"retry-after", b"1"),))
            else:
                await send_json(send, 200, self.host.spaces.to_json())
        elif path == "/status":
            await send_json(send, 200, self.status())
        else:
            paths = "/, /health, /spaces, /status or /act" if self._act else "/, /health, /spaces or /status"
            await send_json(send, 404, {"error": {"code": "message", "message": f"wanted {paths}"}})

    async def _answer_act(self, act: Request, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            status, error = 405, ProtocolError("message", f"/act: wanted POST, got {scope['method']}")
        elif self.token and not self._has_token(scope):
            line = "Authorization: wanted Bearer and the server's token, got none or another one"
            status, error = 401, ProtocolError("token", line)
        elif not self.token and not is_from_this_machine(scope):
            line = "Origin: wanted a page of this machine, as the server has no token, got another"
            status, error = 403, ProtocolError("token", line)
        else:
            await act(scope, receive, send)
            return
        await send_json(send, status, {"error": error.to_message()})

    def _has_token(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, b"Bearer " + self.token.encode())

    def status(self) -> dict[str, Any]:
        """The numbers for the page."""
        clients = [each.session.played() for each in self.connections if each.session.places]
        own, uptime = self._status(), round(time.monotonic() - self._began, 1)
        about = {"agent": self.host.agent, "uptime": uptime, "seats": self.seats, "refused": self.refused}
        speed = {"steps_per_second": self._speed(own["steps"])} if "steps" in own else {}
        return {**about, **speed, "clients": clients, **own}

    @property
    def seats(self) -> int:
        """Seats of all clients."""
        return sum(len(each.session.places) for each in self.connections)

    def _speed(self, steps: int) -> float:
        """Steps a second since the oldest look at them that is kept."""
        before, then = self._looks[0]
        return round((steps - then) / max(time.monotonic() - before, 1e-3), 1)

    def _look(self) -> None:
        self._looks.append((time.monotonic(), self._status().get("steps", 0)))

    async def watch(self) -> None:
        """End connections of silent clients, and let old ones rotate, for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now, seconds = time.monotonic(), self.config.client_seconds
            self._look()
            for connection in list(self.connections):
                session = connection.session
                silent = now - max(connection.heard, connection.sent)  # a slow answer of the server is not the client's silence
                if session.is_waited_for and silent > self.config.client_timeout:
                    limit = f"{self.config.client_timeout:g}"
                    connection.end(ProtocolError("timeout", f"wanted a message within {limit} s, got none"))
                elif seconds and session.places and not connection.asked_to_rotate and now - connection.began > seconds:
                    connection.asked_to_rotate = True
                    session.send({"type": "rotate"})

    async def close(self) -> None:
        """Tell all clients that the server ends, or that its run is over."""
        code, line = ("finished", "the run has made all its steps") if self.is_finished else ("closing", "the server ends")
        for connection in list(self.connections):
            connection.end(ProtocolError(code, line))
        await asyncio.sleep(0)


def is_from_this_machine(scope: Scope) -> bool:
    """Whether no web page asks, or one of this machine. Any page that a user visits could play otherwise.

    The Host header is not compared: a page can let its own name lead to this machine (DNS rebinding), and both are equal then.
    """
    origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
    try:
        return not origin or is_local(urlsplit(origin).hostname or "")
    except ValueError:  # no URL
        return False


def busy_seconds() -> float:
    """Seconds after which a client may come again. Clients that were refused together come one after the other."""
    return round(random.uniform(BUSY_SECONDS, 2 * BUSY_SECONDS), 2)


async def send_json(send: Send, status: int, content: Mapping[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Answer a request with JSON. Numbers that are not finite become null, because JSON has none."""
    try:
        body = json.dumps(content, allow_nan=False)
    except ValueError:
        body = json.dumps(_finite(content), allow_nan=False)
    await send_body(send, status, "application/json", body.encode(), headers)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


async def send_body(send: Send, status: int, kind: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Answer a request. kind: type of the body."""
    usual = ((b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": [*usual, *headers]})
    await send({"type": "http.response.body", "body": body})
