"""Runs a server of clients in an event loop of its own, on Uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from serve.app import ClientServer
from serve.settings import ServerConfig

PACKAGES = ("uvicorn", "websockets", "msgpack")
BACKLOG = 2048
LARGER = 2  # A frame up to this many times too large gets an error; Uvicorn ends the connection of a larger one.


def check_packages() -> None:
    """Raise ValueError if a package that a server needs is not installed."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(
            f"bind: wanted the packages of a server, got an installation without {', '.join(missing)}; run "
            "pip install -r requirements-serve.txt"
        )


def listen(config: ServerConfig) -> socket.socket:
    """A socket that listens at the server's address. Raises ValueError in one line if that cannot be."""
    host, port = config.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(f"bind: wanted an address that is free, got {config.bind} ({error.strerror or error})") from None
    return listening


def check_address(config: ServerConfig) -> None:
    """Raise ValueError in one line if a server cannot listen as it is configured."""
    check_packages()
    config.check()
    listen(config).close()


async def serve(server: ClientServer, listening: socket.socket, work: Any) -> None:
    """Serve clients until the coroutine `work` ends. Its exception is raised."""
    runner = _make_runner(server)
    working, serving = asyncio.ensure_future(work), asyncio.ensure_future(runner.serve([listening]))
    watching = asyncio.ensure_future(server.watch())
    try:
        await asyncio.wait((working, serving, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await server.close()
        runner.should_exit = True
        watching.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(serving, 5.0)
    if working.done() and not working.cancelled():
        working.result()


def run(coroutine: Any, *, fast: bool) -> None:
    """Run a coroutine in a new event loop.

    fast: whether it is that of uvloop, where that is installed. It closes the sockets of a server once more after the program
    has closed them, so it is for processes that end with their server.
    """
    factory = None
    if fast and find_spec("uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)


def _make_runner(server: ClientServer) -> Any:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class RequestLimit(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Ends a connection that completes no request in time. Uvicorn would keep its socket for ever."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.limit = self.loop.call_later(server.config.client_timeout, self.end_without_request, transport)

        def connection_lost(self, error: Exception | None) -> None:
            self.limit.cancel()
            super().connection_lost(error)

        def end_without_request(self, transport: Any) -> None:
            if self.cycle is None and transport.get_protocol() is self:  # a WebSocket has another protocol
                transport.close()

    class Runner(uvicorn.Server):
        """Leaves signals to the program."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it reports each client that breaks off
    config = server.config
    tls: dict[str, Any] = {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key} if config.has_tls else {}
    return Runner(
        uvicorn.Config(
            server,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            http=RequestLimit,
            ws="websockets-sansio",
            ws_max_size=LARGER * config.most_bytes,
            ws_ping_interval=config.client_timeout,
            ws_ping_timeout=config.client_timeout,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=1,
            server_header=False,
            **tls,
        )
    )
