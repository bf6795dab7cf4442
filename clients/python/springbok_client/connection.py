"""One WebSocket to a server, over a blocking socket, without threads.

It uses the protocol of the package websockets without that package's input and output: a step over `websockets.sync`, whose
thread receives, takes more than twice as long.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

READ_BYTES = 1 << 18
CLOSE_SECONDS = 1.0
"""For the server to answer that the connection ends."""

TOO_LARGE = "wanted a frame within the server's --client_megabytes, got a larger one"

Message = Mapping[str, Any]


class ConnectionLost(ConnectionError):
    """The connection broke, or could not be made. `is_final`: another try would end the same."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


def parse_url(url: str) -> WebSocketURI:
    """The parts of `ws://HOST:PORT` or `wss://HOST:PORT`; without a path it is that of clients. Raises ValueError."""
    try:
        uri = parse_uri(url)
        return parse_uri(url.rstrip("/") + "/connect") if uri.path in ("", "/") and not uri.query else uri
    except (InvalidURI, ValueError):
        raise ValueError(f"url: wanted ws://HOST:PORT or wss://HOST:PORT, got {url!r}") from None


def pack(messages: Sequence[Message], *, binary: bool) -> bytes:
    """Messages as one frame, in MessagePack or in JSON. Raises ValueError for numbers that JSON does not have."""
    content = messages[0] if len(messages) == 1 else messages
    if binary:
        packed: bytes = msgpack.packb(content)
        return packed
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


class Connection:
    """An open WebSocket. Raises ConnectionLost.

    Args:
        url: of the server, as for `parse_url`.
        binary: whether frames are MessagePack; otherwise they are JSON.
        timeout: seconds without a byte after which the server is asked whether it is there; after twice as many it is gone.
        tls: for `wss://`; None checks the certificate with those of the system.
    """

    def __init__(self, url: str, *, binary: bool, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        uri = parse_url(url)
        self._binary = binary
        self._early: list[Frame] = []
        self._fragments: list[bytes] = []
        self._opcode = Opcode.TEXT
        self._protocol = ClientProtocol(uri, max_size=None)
        try:
            self._socket = socket.create_connection((uri.host, uri.port), timeout)
        except (OSError, UnicodeError) as error:  # a name of a host may be none
            is_final = isinstance(error, UnicodeError)
            raise ConnectionLost(getattr(error, "strerror", None) or str(error), is_final=is_final) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if uri.secure:
                self._socket = (tls or ssl.create_default_context()).wrap_socket(self._socket, server_hostname=uri.host)
            self._shake_hands()
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError) and not isinstance(error, ConnectionLost):
                raise ConnectionLost(str(error), is_final=isinstance(error, ssl.SSLCertVerificationError)) from None
            raise

    def _shake_hands(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
            self._read()
        events = self._protocol.events_received()
        self._early = [event for event in events if isinstance(event, Frame)]  # came together with the answer
        response = next((event for event in events if isinstance(event, Response)), None)
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus) and response is not None:
            is_final = response.status_code < 500  # a proxy answers 502 or 503 while its server starts
            raise ConnectionLost(f"wanted a server of clients, got HTTP status {response.status_code}", is_final=is_final)
        if error is not None:
            is_final = isinstance(error, InvalidHandshake)
            raise ConnectionLost(f"wanted a server of clients, got none ({error})", is_final=is_final)

    def send(self, frame: bytes) -> None:
        """Send a frame of `pack`."""
        if self._protocol.state is not State.OPEN:
            raise ConnectionLost("the server ended the connection")
        if self._binary:
            self._protocol.send_binary(frame)
        else:
            self._protocol.send_text(frame)
        self._flush()

    def receive(self) -> list[dict[str, Any]]:
        """Wait for one frame or more. Returns their messages."""
        while True:
            if messages := self._messages():
                return messages
            if self._protocol.state is not State.OPEN:
                raise ConnectionLost("the server ended the connection")
            self._read()

    def last_words(self) -> list[dict[str, Any]]:
        """Messages that came before the connection broke."""
        messages = self._messages()
        self._socket.settimeout(CLOSE_SECONDS)
        with contextlib.suppress(OSError):
            while data := self._socket.recv(READ_BYTES):
                self._parse(data)
                messages += self._messages()
        return messages

    def close(self, last: bytes) -> None:
        """Send the last frame, after which the server ends the connection. A server that is silent is not waited for."""
        until = time.monotonic() + CLOSE_SECONDS
        self._socket.settimeout(CLOSE_SECONDS)
        with contextlib.suppress(OSError):
            self.send(last)
            # A frame that ends the connection, sent before the server has read the others, could overtake them there.
            while (data := self._socket.recv(READ_BYTES)) and time.monotonic() < until:
                self._parse(data)
                self._flush()
        self._socket.close()

    def abort(self) -> None:
        """Drop the connection."""
        self._socket.close()

    def _messages(self) -> list[dict[str, Any]]:
        """Messages of the frames that came. The end after a frame over the server's limit counts as an error."""
        messages: list[dict[str, Any]] = []
        early, self._early = self._early, []
        for frame in [*early, *self._protocol.events_received()]:
            if not isinstance(frame, Frame):
                continue
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                if frame.opcode is not Opcode.CONT:
                    self._opcode = frame.opcode
                self._fragments.append(bytes(frame.data))
                if frame.fin:
                    data = b"".join(self._fragments)
                    self._fragments = []
                    content = json.loads(data) if self._opcode is Opcode.TEXT else msgpack.unpackb(data)
                    messages += content if isinstance(content, list) else [content]
            elif frame.opcode is Opcode.CLOSE and Close.parse(frame.data).code == CloseCode.MESSAGE_TOO_BIG:
                messages.append({"type": "error", "code": "size", "message": TOO_LARGE})
        return messages

    def _read(self) -> None:
        """Wait for bytes. A silent server is asked once whether it is there; any byte is an answer."""
        for is_last in (False, True):
            try:
                data = self._socket.recv(READ_BYTES)
                break
            except socket.timeout:  # in Python 3.9 it is no TimeoutError
                if is_last or self._protocol.state is not State.OPEN:
                    raise ConnectionLost("the server is silent") from None
                self._protocol.send_ping(b"")
                self._flush()
            except OSError as error:
                raise ConnectionLost(error.strerror or str(error)) from None
        if data:
            self._parse(data)
        else:
            self._protocol.receive_eof()
        with contextlib.suppress(ConnectionLost):  # a reply that fails must not hide what came; the next read fails as well
            self._flush()

    def _parse(self, data: bytes) -> None:
        """Take bytes that came. Raises ConnectionLost if Ctrl-C ended the parser, a generator, in an earlier call."""
        try:
            self._protocol.receive_data(data)
        except StopIteration:
            raise ConnectionLost("the connection was interrupted while a frame was read") from None

    def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                if data:
                    self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
