"""A client for tests: plays Gymnasium environments over a WebSocket, as docs/protocol.md says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from wrappers.space_json import space_to_json


def plain(value: Any) -> Any:
    """A value of a space as JSON has it."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def spaces_of(env: Any, *, mask: bool = False) -> dict[str, Any]:
    return {"observation": space_to_json(env.observation_space), "action": space_to_json(env.action_space), "mask": mask}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Player:
    """Plays environments as the seats of one connection until `stop` returns true. returns: of the episodes that ended."""

    def __init__(self, url: str, make: Callable[[], Any], *, seats: int = 1, stop: Callable[[], bool], **hello: Any) -> None:
        self._url, self._stop, self._hello = url, stop, hello
        self._envs = [make() for _ in range(seats)]
        self.returns: list[float] = []
        self.steps = 0

    def run(self) -> None:
        """Play. It connects again after each end of the connection."""
        while not self._stop():
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                self._play()
            time.sleep(0.05)

    def _play(self) -> None:
        with connect(f"{self._url}/connect", open_timeout=2, close_timeout=0.2) as socket_:

            def receive() -> list[dict[str, Any]]:
                found = json.loads(socket_.recv(timeout=5))
                return found if isinstance(found, list) else [found]

            spaces = spaces_of(self._envs[0], mask="mask" in self._hello)
            given = {name: value for name, value in self._hello.items() if name != "mask"}
            hello = {"type": "hello", "protocol": 1, "name": "test", "seats": len(self._envs), "spaces": spaces, **given}
            socket_.send(json.dumps(hello))
            (answer,) = receive()
            if answer["type"] == "busy":
                time.sleep(0.2)
                return
            assert answer["type"] == "welcome", answer
            totals = [0.0] * len(self._envs)
            messages = [self._reset(seat) for seat in range(len(self._envs))]
            while not self._stop():
                socket_.send(json.dumps(messages))
                messages = [each for action in receive() for each in self._step(action, totals)]
                if not messages:
                    return

    def _reset(self, seat: int) -> dict[str, Any]:
        observation, info = self._envs[seat].reset()
        return {"type": "reset", "seat": seat, "observation": plain(observation), **self._mask(info)}

    def _mask(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"mask": plain(info["action_mask"])} if "action_mask" in info else {}

    def _step(self, answer: dict[str, Any], totals: list[float]) -> list[dict[str, Any]]:
        if answer["type"] != "action":
            return []
        seat, env = answer["seat"], self._envs[answer["seat"]]
        action = answer["action"]
        if isinstance(env.action_space, gymnasium.spaces.Box):
            action = np.array(action, env.action_space.dtype)
        observation, reward, terminated, truncated, info = env.step(action)
        totals[seat] += float(reward)
        self.steps += 1
        message = {"type": "step", "seat": seat, "observation": plain(observation), "reward": float(reward)}
        messages = [{**message, "terminated": bool(terminated), "truncated": bool(truncated), **self._mask(info)}]
        if terminated or truncated:
            self.returns.append(totals[seat])
            totals[seat] = 0.0
            messages.append(self._reset(seat))
        return messages


@contextlib.contextmanager
def playing(*players: Player) -> Iterator[None]:
    """A context in which players play, each in a thread."""
    threads = [threading.Thread(target=player.run, daemon=True) for player in players]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(20)
