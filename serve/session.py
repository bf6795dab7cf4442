"""One client's connection: reads its messages, checks their order, and passes them to the host. It knows no network."""

from __future__ import annotations

import hmac
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from serve.frames import PROTOCOL, Message, ProtocolError, integer, messages_of, number, pack, shown, truth
from serve.values import read_mask, reader_of, wire_action
from wrappers.served import ServedSpaces, read_spaces
from wrappers.space_json import MOST_NUMBERS, numbers_of, space_to_json

MOST_SEATS = 1024
FEW_NUMBERS = 2**16  # of a space that is made to be compared with the host's
MOST_VALUES = 4096
"""Numbers of one metric."""
RECENT_EPISODES = 100  # whose mean return is shown
NO_ACTION = "observation: wanted one that the policy has finite outputs for, got one with outputs that are not finite"
"""Line of an error. Numbers near the end of float32 cause it, or a policy that diverged."""
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")


class SeatState(Enum):
    """Which message a seat may send next. See docs/protocol.md."""

    IDLE = "idle"
    THINKING = "thinking"
    ACTING = "acting"


@dataclass(frozen=True)
class Outcome:
    """A checked `step` or `reset` of a client.

    observation: a value of the observation space. info: numbers of the client. mask: int64 `[mask_size]`, if one came.
    """

    observation: Any
    info: Mapping[str, Any]
    mask: np.ndarray | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Busy(Exception):
    """There is no room for a client. retry_after: seconds after which it may come again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"no room; come again after {retry_after:g} s")
        self.retry_after = retry_after


def check_seats(count: int, most: int) -> None:
    """Raise ProtocolError if a client asks for more seats than the server has, free or not. It would come again for ever."""
    if count > most:
        raise ProtocolError("seat", f"seats: wanted at most {most}, got {count}")


class Host(ABC):
    """The side that acts. Its seats have numbers of their own.

    agent: its name. spaces: of its environment. waits: whether they are not known yet. most_numbers: of a client's observation;
    spaces with many more than the host's own are other ones, and to build them would take seconds.
    """

    waits = False

    def __init__(self, agent: str, spaces: ServedSpaces) -> None:
        self.agent, self.spaces = agent, spaces
        self.read_observation = reader_of(spaces.observation)
        self.mask_size = spaces.mask_size
        own = numbers_of(space_to_json(spaces.observation))
        self.most_numbers = MOST_NUMBERS if self.waits else max(own, FEW_NUMBERS)

    def check_spaces(self, spaces: ServedSpaces) -> None:
        """Raise ValueError if a client has other spaces."""
        self.spaces.check_same(spaces)

    @abstractmethod
    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        """Give seats to a client. Returns their numbers. Raises Busy, or ProtocolError for more seats than there are."""

    @abstractmethod
    def begin(self, seat: int, outcome: Outcome) -> None:
        """An episode begins. The host answers by `Session.answer`, soon but not in this call."""

    @abstractmethod
    def take(self, seat: int, outcome: Outcome) -> None:
        """The result of a seat's action. The host answers unless the episode has ended."""

    @abstractmethod
    def leave(self, seat: int) -> None:
        """A client gives a seat back. An episode that runs is cut."""

    def metric(self, seat: int, name: str, values: list[float]) -> None:  # noqa: B027  (a finished policy records nothing)
        """Numbers of a client for the metrics."""


@dataclass
class Place:
    """A seat of a client. host_seat: its number at the host. total: rewards of its episode so far."""

    host_seat: int
    state: SeatState = SeatState.IDLE
    total: float = 0.0


@dataclass
class Session:
    """A connection of one client.

    Args:
        host: acts.
        wake: called when there are answers to send.
        token: that the client must send; empty for none.
        name: of the client's environment, known from its first message on.
        binary: whether the client speaks MessagePack.
        count: called before each message, and for an empty frame. Raises ProtocolError if the client sends too many.
        places: the client's seats, by its own numbers. Empty before it is welcome.
        answers: messages that wait to be sent.
        steps, episodes, returns: what the client has played; returns are those of its newest episodes.
    """

    host: Host
    wake: Callable[[], None]
    token: str = ""
    name: str = ""
    binary: bool = False
    exploit: bool = False
    closed: bool = False
    count: Callable[[], None] = lambda: None
    found_no_room: bool = False
    places: list[Place] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    episodes: int = 0
    returns: deque[float] = field(default_factory=partial(deque, maxlen=RECENT_EPISODES))
    _numbers: dict[int, int] = field(default_factory=dict)  # number at the host -> number of the client

    @property
    def is_waited_for(self) -> bool:
        """Whether the next message has to come from the client."""
        return not self.places or any(place.state is not SeatState.THINKING for place in self.places)

    def played(self) -> dict[str, Any]:
        """The client's name and seats, and the steps and episodes that it has played, for the page of the server."""
        mean = round(sum(self.returns) / len(self.returns), 4) if self.returns else None
        about = {"name": self.name, "seats": len(self.places), "exploit": self.exploit}
        return {**about, "steps": self.steps, "episodes": self.episodes, "return_mean": mean}

    def receive(self, frame: str | bytes) -> None:
        """Take a frame of the client. Raises ProtocolError; the caller sends it and ends the connection."""
        if not self.places:
            self.binary = isinstance(frame, bytes)  # an error of the first frame has its form, too
        messages = messages_of(frame)
        if not messages:
            self.count()
        for message in messages:
            if self.closed:
                return
            self.count()
            if not self.places:
                self._hello(message)
            else:
                self._take(message)

    def answer(self, host_seat: int, action: Any, version: int) -> None:
        """Send the action of a seat, as the environment takes it. Others that wait go in the same frame."""
        if host_seat in self._numbers and not self.closed:  # the client may have left meanwhile
            seat = self._numbers[host_seat]
            self.places[seat].state = SeatState.ACTING
            self.send({"type": "action", "seat": seat, "action": wire_action(action), "version": version})

    def refuse(self, error: ProtocolError, host_seat: int | None = None) -> None:
        """Send an error as the last message; then the connection ends. host_seat: the seat that the error belongs to."""
        if self.closed:
            return
        if host_seat is not None:
            error.seat = self._numbers.get(host_seat)
        self.send(error.to_message())
        self.closed = True

    def send(self, message: dict[str, Any]) -> None:
        """Send a message soon."""
        self.answers.append(message)
        self.wake()

    def frame(self) -> str | bytes | None:
        """One frame with all answers that wait; None if there are none."""
        answers, self.answers = self.answers, []
        if not answers:
            return None
        return pack(answers[0] if len(answers) == 1 else answers, binary=self.binary)

    def end(self) -> None:
        """Give the seats back. Called once, when the connection has ended."""
        self.closed = True
        places, self.places, self._numbers = self.places, [], {}
        for place in places:
            self.host.leave(place.host_seat)

    def _hello(self, message: Message) -> None:
        if message["type"] != "hello":
            raise ProtocolError("protocol", f"wanted hello as the first message, got {shown(message['type'])}")
        if message.get("protocol") != PROTOCOL:
            raise ProtocolError("protocol", f"protocol: wanted {PROTOCOL}, got {shown(message.get('protocol'))}")
        if self.token and not _is_equal(message.get("token"), self.token):
            raise ProtocolError("token", "token: wanted the server's, got none or another one")
        name = message.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ProtocolError("message", f"name: wanted 1 to 64 characters of A-Z a-z 0-9 _ . - / :, got {shown(name)}")
        self.name, self.exploit = name, truth(message, "exploit", default=False)
        try:
            count = integer(message, "seats", 1, least=1, most=MOST_SEATS)
        except ProtocolError as error:
            raise ProtocolError("seat", str(error)) from None
        try:
            self.host.check_spaces(read_spaces(message.get("spaces"), self.host.most_numbers))
        except ValueError as error:
            raise ProtocolError("spaces", str(error)) from None
        try:
            seats = self.host.join(self, count, exploit=self.exploit)
        except Busy as busy:
            self.found_no_room = True
            self.send({"type": "busy", "retry_after": busy.retry_after})
            self.closed = True
            return
        self.places = [Place(seat) for seat in seats]
        self._numbers = {seat: index for index, seat in enumerate(seats)}
        self.send({"type": "welcome", "protocol": PROTOCOL, "agent": self.host.agent, "seats": count})

    def _take(self, message: Message) -> None:
        kind = message["type"]
        if kind == "step":
            self._step(message)
        elif kind == "reset":
            self._reset(message)
        elif kind == "metric":
            self._metric(message)
        elif kind == "close":
            self.closed = True
        else:
            raise ProtocolError("message", f"type: wanted reset, step, metric or close, got {shown(kind)}")

    def _step(self, message: Message) -> None:
        seat, place = self._place(message)
        if place.state is not SeatState.ACTING:
            wanted = "reset" if place.state is SeatState.IDLE else "no message before the action"
            raise ProtocolError("order", f"seat {seat}: wanted {wanted}, got step", seat)
        reward = number(message, "reward")
        terminated, truncated = truth(message, "terminated"), truth(message, "truncated")
        info = message.get("info", {})
        if not isinstance(info, Mapping):
            raise ProtocolError("message", f"info: wanted an object, got {shown(info)}", seat)
        ended = terminated or truncated
        observation, mask = self._observation(message, needs_mask=not ended)
        self.steps += 1
        place.total += reward
        if ended:
            self.episodes += 1
            self.returns.append(place.total)
        place.state = SeatState.IDLE if ended else SeatState.THINKING
        self.host.take(place.host_seat, Outcome(observation, info, mask, reward, terminated, truncated))

    def _reset(self, message: Message) -> None:
        seat, place = self._place(message)
        if place.state is SeatState.THINKING:
            raise ProtocolError("order", f"seat {seat}: wanted no message before the action, got reset", seat)
        observation, mask = self._observation(message, needs_mask=True)
        place.state, place.total = SeatState.THINKING, 0.0
        self.host.begin(place.host_seat, Outcome(observation, {}, mask))

    def _metric(self, message: Message) -> None:
        seat = integer(message, "seat", 0)
        _, place = self._place({"seat": seat})
        name = message.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ProtocolError("message", f"name: wanted 1 to 64 characters of A-Z a-z 0-9 _ . - / :, got {shown(name)}")
        given = message.get("value")
        values = given if isinstance(given, list) else [given]
        if not 0 < len(values) <= MOST_VALUES:
            raise ProtocolError("message", f"value: wanted a number or 1 to {MOST_VALUES} numbers, got {len(values)}")
        self.host.metric(place.host_seat, name, [number({"value": value}, "value") for value in values])

    def _place(self, message: Message) -> tuple[int, Place]:
        seat = integer(message, "seat")
        if seat >= len(self.places):
            raise ProtocolError("seat", f"seat: wanted a number below {len(self.places)}, got {seat}")
        return seat, self.places[seat]

    def _observation(self, message: Message, *, needs_mask: bool) -> tuple[Any, np.ndarray | None]:
        """The observation of a message, and its mask."""
        spaces = self.host.spaces
        if "observation" not in message:
            raise ProtocolError("message", "observation: wanted one, got none")
        observation = self.host.read_observation(message["observation"], "observation")
        if not spaces.has_mask:
            return observation, None
        if "mask" in message:
            return observation, read_mask(message["mask"], self.host.mask_size)
        if needs_mask:
            raise ProtocolError("message", f"mask: wanted {self.host.mask_size} numbers, got none")
        return observation, None


def _is_equal(given: Any, token: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), token.encode())
