"""The server of the program in a thread, with a host that acts at random and keeps what clients sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from serve.app import ClientServer
from serve.run import listen, serve
from serve.session import Host, Outcome, Session
from serve.settings import ServerConfig
from wrappers.served import ServedSpaces


class RandomHost(Host):
    """outcomes: what came, by the host's number of a seat. left: seats that clients gave back."""

    server: ClientServer
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Event

    def __init__(self, spaces: ServedSpaces) -> None:
        super().__init__("random", spaces)
        self.outcomes: dict[int, list[Outcome]] = {}
        self.metrics: list[tuple[str, list[float]]] = []
        self.sessions: list[Session] = []
        self.actions: list[Any] = []
        self.left: list[int] = []

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        seats = list(range(len(self.sessions), len(self.sessions) + count))
        self.sessions += [session] * count
        return seats

    def begin(self, seat: int, outcome: Outcome) -> None:
        self.take(seat, outcome)

    def take(self, seat: int, outcome: Outcome) -> None:
        self.outcomes.setdefault(seat, []).append(outcome)
        if not outcome.ended:
            action = self.spaces.action.sample()
            self.actions.append(action if isinstance(action, np.ndarray) else int(action))
            self.sessions[seat].answer(seat, self.actions[-1], len(self.actions))

    def leave(self, seat: int) -> None:
        self.left.append(seat)

    def metric(self, seat: int, name: str, values: list[float]) -> None:
        self.metrics.append((name, values))


@contextmanager
def really_running(spaces: ServedSpaces, **settings: Any) -> Iterator[tuple[RandomHost, str]]:
    """Run a server of these spaces. Yields its host and its URL."""
    config, host = ServerConfig(bind="127.0.0.1:0", **settings), RandomHost(spaces)
    listening = listen(config)
    url = f"{'wss' if config.has_tls else 'ws'}://127.0.0.1:{listening.getsockname()[1]}"
    host.loop, host.ended = loop, ended = asyncio.new_event_loop(), asyncio.Event()
    server = host.server = ClientServer(host, config, lambda: {"steps": len(host.actions)})
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(server, listening, ended.wait()),))
    thread.start()
    try:
        yield host, url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
