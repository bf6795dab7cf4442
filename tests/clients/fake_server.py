"""A server for tests of clients: it follows docs/protocol.md, answers with random actions, and does what a test asks for.

As a program, `python -m tests.clients.fake_server PORT`, it serves until it is killed.
"""

from __future__ import annotations

import asyncio
import http
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "/": (ROOT / "serve/page/index.html", "text/html"),
    "/page.js": (ROOT / "serve/page/page.js", "text/javascript"),
    "/page.css": (ROOT / "serve/page/page.css", "text/css"),
    "/cartpole.js": (ROOT / "serve/page/cartpole.js", "text/javascript"),
    "/springbok.js": (ROOT / "clients/javascript/springbok.js", "text/javascript"),
}


class Refused(Exception):
    """The client broke the protocol. The arguments are the code and the message."""


class Seat:
    """The messages that a client may send for one seat."""

    state = "idle"


class FakeServer:
    """Attributes say what to do, and what came. A test sets and reads them while the server runs in a thread.

    Attributes:
        busy: connections that are asked to come again.
        closing: connections that end as soon as they are welcome.
        rotate_after: messages after which a connection is asked to rotate.
        drop_after: messages after which a connection is broken off, once for each entry.
        error_at: message -> the code of the error that answers it.
        token: that clients must send.
        most_bytes: of a frame of a client.
        close_timeout: seconds for which a client that hears of the end may reply.
        act: action space -> action.
    """

    def __init__(self) -> None:
        self.busy = self.closing = 0
        self.rotate_after = 0
        self.drop_after: list[int] = []
        self.error_at: dict[int, str] = {}
        self.token = ""
        self.most_bytes = 1 << 20
        self.close_timeout = 10.0
        self.act: Callable[[dict[str, Any]], Any] = random_action
        self.frames = 0
        self.hellos: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []  # all after hello, of all connections
        self.open = 0
        self.status: dict[str, Any] = {}
        self.spaces: dict[str, Any] = {}
        self.files: dict[str, tuple[Path, str]] = dict(FILES)
        self.url = ""

    def answer_http(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.split("?")[0]
        if path == "/connect":
            return None
        if path in self.files:
            file, kind = self.files[path]
            return response(file.read_bytes(), kind)
        if path in ("/status", "/spaces"):
            return response(json.dumps(getattr(self, path[1:])).encode(), "application/json")
        return Response(404, "Not Found", Headers({"Content-Length": "0"}), b"")

    async def serve_client(self, socket: ServerConnection) -> None:
        self.open += 1
        socket.close_timeout = self.close_timeout
        client = Client(self, socket)
        try:
            async for frame in socket:
                self.frames += 1
                client.binary = isinstance(frame, bytes) if not client.hello else client.binary
                answers = client.answers(msgpack.unpackb(frame) if isinstance(frame, bytes) else json.loads(frame))
                if answers is None:
                    socket.transport.abort()
                    return
                if answers:
                    await socket.send(client.pack(answers))
                if client.is_closed:
                    await socket.close()
                    return
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1


class Client:
    """One connection."""

    def __init__(self, server: FakeServer, socket: ServerConnection) -> None:
        self.server, self.socket = server, socket
        self.hello: dict[str, Any] = {}
        self.binary = False
        self.is_closed = False
        self.count = 0
        self.seats: list[Seat] = []

    def pack(self, answers: list[dict[str, Any]]) -> str | bytes:
        content = answers[0] if len(answers) == 1 else answers
        packed: str | bytes = msgpack.packb(content) if self.binary else json.dumps(content)
        return packed

    def answers(self, content: Any) -> list[dict[str, Any]] | None:
        """Answers to a frame; None to break the connection off."""
        answers: list[dict[str, Any]] = []
        for message in content if isinstance(content, list) else [content]:
            try:
                if not self.hello:
                    answers.append(self.welcome(message))
                    if self.server.closing:
                        self.server.closing -= 1
                        raise Refused("closing", "the server ends")
                    continue
                self.count += 1
                self.server.messages.append(message)
                if self.count in self.server.drop_after:
                    self.server.drop_after.remove(self.count)
                    return None
                if self.count in self.server.error_at:
                    raise Refused(self.server.error_at.pop(self.count), "a test asked for this")
                answers += self.take(message)
                if self.count == self.server.rotate_after:
                    answers.append({"type": "rotate"})
            except Refused as refused:
                code, text = refused.args
                self.is_closed = True
                return [*answers, {"type": "error", "code": code, "message": text}]
        return answers

    def welcome(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] != "hello" or message["protocol"] != 1:
            raise Refused("protocol", f"wanted hello of protocol 1, got {message}")
        if self.server.token and message.get("token") != self.server.token:
            raise Refused("token", "token: wanted the server's, got none or another one")
        if self.server.busy:
            self.server.busy -= 1
            self.is_closed = True
            return {"type": "busy", "retry_after": 0.05}
        self.hello = message
        self.server.hellos.append(message)
        self.seats = [Seat() for _ in range(message.get("seats", 1))]
        return {"type": "welcome", "protocol": 1, "agent": "random", "seats": len(self.seats)}

    def take(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        kind = message["type"]
        if kind == "close":
            self.is_closed = True
            return []
        number = message.get("seat", 0)
        if not 0 <= number < len(self.seats):
            raise Refused("seat", f"seat: wanted a number below {len(self.seats)}, got {number}")
        if kind == "metric":
            return []
        seat = self.seats[number]
        if kind not in {"idle": ("reset",), "acting": ("step", "reset")}[seat.state]:
            raise Refused("order", f"seat {number} is {seat.state}, got {kind}")
        ends = kind == "step" and (message["terminated"] or message["truncated"])
        if self.hello["spaces"].get("mask") and not ends and "mask" not in message:
            raise Refused("message", "mask: wanted one, got none")
        seat.state = "idle" if ends else "acting"
        action = self.server.act(self.hello["spaces"]["action"])
        return [] if ends else [{"type": "action", "seat": number, "action": action, "version": self.count}]


def random_action(space: dict[str, Any]) -> Any:
    if space["type"] == "discrete":
        return random.randrange(space["n"]) + space.get("start", 0)
    if space["type"] == "multi_discrete":
        return [random.randrange(count) for count in space["nvec"]]
    number = (lambda: random.randrange(2)) if space["type"] == "multi_binary" else random.random
    return nested(space["shape"], number)


def nested(shape: list[int], number: Callable[[], float]) -> Any:
    return [nested(shape[1:], number) for _ in range(shape[0])] if shape else number()


def response(body: bytes, kind: str) -> Response:
    headers = Headers({"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"})
    return Response(http.HTTPStatus.OK, "OK", headers, body)


@contextmanager
def running(server: FakeServer, port: int = 0) -> Iterator[FakeServer]:
    """Run a server in a thread. `url` is its address."""
    loop = asyncio.new_event_loop()
    ready, ended = threading.Event(), asyncio.Event()

    async def serving() -> None:
        options = {"process_request": server.answer_http, "compression": None, "max_size": server.most_bytes}
        async with serve(server.serve_client, "127.0.0.1", port, **options) as listening:
            server.url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serving(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


if __name__ == "__main__":
    with running(FakeServer(), int(sys.argv[1])):
        threading.Event().wait()
