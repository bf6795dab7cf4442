"""The agent of a server, as an environment's program sees it."""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from springbok_client.connection import Connection, ConnectionLost, pack, parse_url
from springbok_client.spaces import decoder, describe, describe_action, encoder, numbers_of, plain_mask

PROTOCOL = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds between two tries to connect; each is twice the one before
PASSING = ("closing", "timeout")
"""Codes of errors after which another connection is worth a try."""

log = logging.getLogger("springbok_client")


class ServerError(Exception):
    """The server refused what the client sent. code: one of the protocol's page. message: in one line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Finished(ServerError):
    """The run of the server has made all its steps. It ends the block of `with RemoteAgent(...)` without an error."""


class Busy(Exception):
    """The server has no room. retry_after: seconds after which to come again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server has no room; trying again after {retry_after:g} s")
        self.retry_after = retry_after


class Action(NamedTuple):
    """The result of `RemoteAgent.receive`. action: None if the connection broke and the seat's episode is given up."""

    seat: int
    action: Any
    version: int = 0


class State(Enum):
    """The state of a seat. HELD: its `reset` waits for a connection. LOST: its episode is given up, but not yet reported."""

    IDLE = "idle"
    HELD = "held"
    THINKING = "thinking"
    ACTING = "acting"
    LOST = "lost"


class RemoteAgent:
    """An agent on a server. Environments of this program play with its actions, and it learns from them.

    If the connection breaks, the running episodes are given up: `step` returns None, as it does at the end of an episode. The
    next `reset` connects again. An agent belongs to one thread.

    Args:
        url: `ws://HOST:PORT`, or `wss://HOST:PORT` with TLS.
        observation_space: a space of Gymnasium, or plain data in the form of the protocol.
        action_space: likewise.
        name: of the environment, at most 64 characters.
        seats: environments that this connection plays at once.
        exploit: whether actions are the best of the newest weights, and nothing is learned.
        token: of the server, if it wants one.
        mask: whether every `reset` and `step` has a mask of legal actions.
        binary: whether frames are MessagePack; otherwise they are JSON.
        patience: seconds for which a server that cannot be reached is tried again.
        timeout: seconds without an answer after which a connection is tried; see `Connection`.
        ca_file: certificates (PEM) that a server with `wss://` may have; None for those of the system.

    Raises ValueError for spaces or a URL that cannot be. The first `reset` connects. Every method may raise ServerError, and
    ConnectionError once the patience has ended. Finished, a ServerError, says that the run is over.
    """

    def __init__(
        self,
        url: str,
        observation_space: Any,
        action_space: Any,
        *,
        name: str,
        seats: int = 1,
        exploit: bool = False,
        token: str | None = None,
        mask: bool = False,
        binary: bool = True,
        patience: float = 60.0,
        timeout: float = 20.0,
        ca_file: str | None = None,
    ) -> None:
        parse_url(url)
        if seats < 1:
            raise ValueError(f"seats: wanted a number >= 1, got {seats}")
        observation, action = describe(observation_space, "observation_space"), describe_action(action_space)
        spaces = {"observation": observation, "action": action, "mask": mask}
        self._hello: dict[str, Any] = {"type": "hello", "protocol": PROTOCOL, "name": name, "spaces": spaces}
        self._hello.update({"seats": seats, "exploit": exploit, **({"token": token} if token else {})})
        self._encode, self._decode = encoder(observation, binary=binary), decoder(action)
        self._url, self._binary, self._patience, self._timeout = url, binary, patience, timeout
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None
        self._connection: Connection | None = None
        self._rotates = False
        self._pause = 0.0  # seconds before the next try to connect
        self._states = [State.IDLE] * seats
        self._resets: dict[int, Mapping[str, Any]] = {}  # by seat: sent or held, without an answer yet
        self._ready: dict[int, Action] = {}  # by seat: answers that the caller has yet to take
        self.agent = ""
        """Name of the server's agent, once connected."""
        self.given_up = 0
        """Episodes that ended because a connection broke."""

    def __enter__(self) -> RemoteAgent:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        self.close()
        if isinstance(error, Finished):
            log.warning("%s: the run is over", self._url)
        return isinstance(error, Finished)

    def reset(self, observation: Any, mask: Any = None, seat: int = 0) -> Any:
        """Begin an episode. Returns its first action. Connects if there is no connection, and waits until there is one.

        mask: 1 for each legal action, 0 for each other one.
        """
        self.send([reset_message(seat, observation, mask)])
        return self._answer(seat)

    def step(
        self,
        observation: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        mask: Any = None,
        info: Mapping[str, Any] | None = None,
        seat: int = 0,
    ) -> Any:
        """Report the result of the last action. Returns the next action; None if the episode has ended or is given up.

        info: of the environment; its numbers and truth values go into the server's metrics.
        """
        self.send([step_message(seat, observation, reward, terminated, truncated, mask, info)])
        return None if terminated or truncated else self._answer(seat)

    def metric(self, name: str, value: float | Sequence[float], seat: int = 0) -> None:
        """Report a number, or several, for the server's metrics. They are dropped while there is no connection."""
        self.send([{"type": "metric", "name": name, "value": np.asarray(value, np.float64).tolist(), "seat": seat}])

    def send(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Send messages of several seats in one frame: those of `reset_message` and `step_message`, or of the protocol's page.

        Messages of an episode that is given up are dropped. A `reset` waits for the next `receive` without a connection, or
        if the server asked for a new one while other episodes run. Raises ValueError for values that a space does not have;
        then none is sent, and all seats stay as they were.
        """
        before = self._states.copy(), self._resets.copy(), self._ready.copy()
        try:
            wire = [ready for message in messages if (ready := self._prepared(message))]
            frame = self._pack(wire)  # also resets that are held: packing them later cannot fail
        except BaseException:
            self._states, self._resets, self._ready = before
            raise
        if self._connection is None or self._rotates:
            held = [each for each in wire if each["type"] == "reset"]
            self._set(State.HELD, held)
            wire = [each for each in wire if each["type"] != "reset"] if self._connection else []
            frame = self._pack(wire)
        if wire:
            self._transmit(frame)

    def receive(self) -> list[Action]:
        """Wait for actions. Returns those that are there; none if no seat waits for one."""
        while True:
            lost = [Action(seat, None) for seat, state in enumerate(self._states) if state is State.LOST]
            self._states = [State.IDLE if state is State.LOST else state for state in self._states]
            if answers := [*lost, *self._ready.values()]:
                self._ready.clear()
                return answers
            if not self._wait():
                return []

    def close(self) -> None:
        """Leave the server; episodes that run are cut."""
        self._forget()
        self._leave()

    def _answer(self, seat: int) -> Any:
        """Wait for the action of a seat; None if its episode is given up."""
        while seat not in self._ready and self._states[seat] is not State.LOST:
            self._wait()
        if seat in self._ready:
            return self._ready.pop(seat).action
        self._states[seat] = State.IDLE
        return None

    def _prepared(self, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A message as it goes into a frame, None if it is dropped. Follows the state of its seat. Raises ValueError."""
        kind, seat = message["type"], message.get("seat", 0)
        if not 0 <= seat < len(self._states):
            raise ValueError(f"seat: wanted 0 to {len(self._states) - 1}, got {seat}")
        if kind not in ("reset", "step"):
            return message
        state = self._states[seat]
        allowed = (State.ACTING, State.LOST, State.IDLE) if kind == "reset" else (State.ACTING, State.LOST)
        if state not in allowed:
            wanted = "reset" if state is State.IDLE else "receive"
            raise ValueError(f"seat {seat}: wanted {wanted} before {kind}, got none")
        ends = kind == "step" and (message["terminated"] or message["truncated"])
        if kind == "step" and state is State.LOST:
            self._states[seat] = State.IDLE if ends else State.LOST
            return None
        self._ready.pop(seat, None)
        wire = {**message, "observation": self._encode(message["observation"])}
        if message.get("mask") is not None:
            wire["mask"] = plain_mask(message["mask"])
        if message.get("info"):
            wire["info"] = numbers_of(message["info"])
        self._states[seat] = State.IDLE if ends else State.THINKING
        if kind == "reset":
            self._resets[seat] = wire
        return wire

    def _set(self, state: State, messages: Iterable[Mapping[str, Any]]) -> None:
        for message in messages:
            self._states[message["seat"]] = state

    def _pack(self, wire: Sequence[Mapping[str, Any]]) -> bytes:
        return pack(wire, binary=self._binary)

    def _transmit(self, frame: bytes) -> None:
        assert self._connection
        try:
            self._connection.send(frame)
        except ConnectionLost as lost:
            words = self._connection.last_words()
            self._break(lost)
            self._take([word for word in words if word["type"] == "error"])

    def _wait(self) -> bool:
        """Wait for one frame, and connect before if need be. Returns False if no seat waits for an action.

        Held resets go out once no other seat waits for the server: over a new connection if no episode runs, otherwise over
        this one, because the caller may be about to step those.
        """
        if State.THINKING not in self._states:
            held = [self._resets[seat] for seat, state in enumerate(self._states) if state is State.HELD]
            if not held:
                return False
            if self._connection is None or State.ACTING not in self._states:
                self._connect()
            if self._connection is None:  # it broke at once, and the next call connects again
                return True
            self._set(State.THINKING, held)
            self._transmit(self._pack(held))
        if self._connection:
            try:
                self._take(self._connection.receive())
            except ConnectionLost as lost:
                self._break(lost)
        return True

    def _take(self, messages: Iterable[Mapping[str, Any]]) -> None:
        for message in messages:
            kind = message["type"]
            if kind == "action":
                seat = message["seat"]
                self._states[seat] = State.ACTING
                self._pause = 0.0
                self._resets.pop(seat, None)
                self._ready[seat] = Action(seat, self._decode(message["action"]), message["version"])
            elif kind == "rotate":
                self._rotates = True
            elif kind in ("busy", "error"):
                error = refusal(message)
                self._break(error)
                if isinstance(error, ServerError):
                    self._forget()
                    raise error

    def _break(self, reason: Exception) -> None:
        """Drop the connection. Resets without an answer are sent again later, and other running episodes are given up."""
        if self._connection is None:
            return
        self._connection.abort()
        self._connection = None
        for seat, state in enumerate(self._states):
            if state is State.THINKING and seat in self._resets:
                self._states[seat] = State.HELD
            elif state in (State.THINKING, State.ACTING):
                self._states[seat] = State.LOST
                self._ready.pop(seat, None)
                self.given_up += 1
        self._lengthen_pause()
        if not isinstance(reason, ServerError):  # which the caller raises
            log.warning("%s: the connection broke (%s)", self._url, reason)

    def _forget(self) -> None:
        """Leave all seats idle, so that the caller may begin anew."""
        self._states = [State.IDLE] * len(self._states)
        self._resets.clear()
        self._ready.clear()

    def _lengthen_pause(self) -> None:
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)

    def _connect(self) -> None:
        """Connect, with pauses between tries. Raises ConnectionError once the patience has ended, and ServerError."""
        self._leave()
        until, seconds = time.monotonic() + self._patience, self._pause * random.uniform(0.5, 1.0)
        is_first = True
        while True:
            time.sleep(seconds)
            try:
                self._open()
                return
            except Busy as busy:
                log.warning("%s: %s", self._url, busy)
                seconds = busy.retry_after * random.uniform(1.0, 1.25)
                until = time.monotonic() + self._patience
            except ConnectionLost as lost:
                if lost.is_final or time.monotonic() >= until:
                    self._forget()
                    raise ConnectionError(f"{self._url}: {lost}") from None
                if is_first:
                    log.warning("%s: %s; trying again for %g s", self._url, lost, self._patience)
                is_first = False
                self._lengthen_pause()
                seconds = min(self._pause * random.uniform(0.5, 1.0), max(0.0, until - time.monotonic()))
            except ServerError:
                self._forget()
                raise

    def _open(self) -> None:
        connection = Connection(self._url, binary=self._binary, timeout=self._timeout, tls=self._tls)
        try:
            try:
                connection.send(self._pack([self._hello]))
                first, *further = connection.receive()
            except ConnectionLost:
                if not (words := connection.last_words()):  # such as busy, before the server had read anything
                    raise
                first, *further = words
            if first["type"] != "welcome":
                raise refusal(first)
        except BaseException:
            connection.abort()
            raise
        self._connection, self._rotates, self.agent = connection, False, first["agent"]
        self._take(further)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close(self._pack([{"type": "close"}]))


def refusal(message: Mapping[str, Any]) -> Exception:
    """The exception for a message that ends a connection: Busy, ConnectionLost for an error that may pass, or ServerError."""
    if message["type"] == "busy":
        return Busy(message["retry_after"])
    if message["type"] != "error":
        return ConnectionLost(f"wanted welcome, got {message['type']}", is_final=True)
    error = (Finished if message["code"] == "finished" else ServerError)(message["code"], message["message"])
    return ConnectionLost(str(error)) if error.code in PASSING else error


def reset_message(seat: int, observation: Any, mask: Any = None) -> dict[str, Any]:
    """The message that begins an episode, for `RemoteAgent.send`."""
    return {"type": "reset", "seat": seat, "observation": observation, **({} if mask is None else {"mask": mask})}


def step_message(
    seat: int,
    observation: Any,
    reward: float,
    terminated: bool = False,
    truncated: bool = False,
    mask: Any = None,
    info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The message with the result of an action, for `RemoteAgent.send`. Arguments as for `RemoteAgent.step`."""
    message = {"type": "step", "seat": seat, "observation": observation, "reward": float(reward)}
    message.update(terminated=bool(terminated), truncated=bool(truncated))
    if mask is not None:
        message["mask"] = mask
    if info:
        message["info"] = info
    return message
