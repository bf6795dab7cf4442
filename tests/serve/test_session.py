"""The protocol without a network: the page's example byte for byte, every order of messages, and hostile frames."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import gymnasium
import msgpack
import numpy as np
import pytest

from serve.frames import ProtocolError, messages_of
from serve.session import Busy, Host, Outcome, Session
from serve.values import reader_of
from tests.serve.playing import plain
from tests.support import REPOSITORY
from wrappers.served import ServedSpaces, read_spaces
from wrappers.space_json import space_from_json, space_to_json

CARTPOLE = {
    "observation": {"type": "box", "shape": [4], "dtype": "float32", "low": None, "high": None},
    "action": {"type": "discrete", "n": 2},
}
HELLO = {"type": "hello", "protocol": 1, "name": "CartPole-v1", "spaces": CARTPOLE}
RESET = {"type": "reset", "seat": 0, "observation": [0.0, 0.0, 0.0, 0.0]}
STEP = {**RESET, "type": "step", "reward": 1.0, "terminated": False, "truncated": False}


class FakeHost(Host):
    """Answers with the actions that it was given, one after the other."""

    def __init__(self, spaces: ServedSpaces, actions: list[Any], *, room: int = 4) -> None:
        super().__init__("ppo", spaces)
        self.actions, self.room = actions, room
        self.session: Session | None = None
        self.calls: list[tuple[Any, ...]] = []

    def join(self, session: Session, count: int, *, exploit: bool) -> list[int]:
        if count > self.room:
            raise Busy(2.5)
        self.session = session
        return [10 + number for number in range(count)]

    def begin(self, seat: int, outcome: Outcome) -> None:
        self.calls.append(("begin", seat))
        self._answer(seat)

    def take(self, seat: int, outcome: Outcome) -> None:
        self.calls.append(("take", seat, outcome.reward, outcome.terminated, outcome.truncated))
        if not outcome.ended:
            self._answer(seat)

    def _answer(self, seat: int) -> None:
        assert self.session is not None
        if self.actions:
            self.session.answer(seat, self.actions.pop(0), 0)

    def leave(self, seat: int) -> None:
        self.calls.append(("leave", seat))

    def metric(self, seat: int, name: str, values: list[float]) -> None:
        self.calls.append(("metric", seat, name, values))


def make_session(actions: list[Any] | None = None, **given: Any) -> tuple[Session, FakeHost]:
    host = FakeHost(read_spaces(CARTPOLE), list(range(2)) * 500 if actions is None else actions)
    return Session(host, lambda: None, **given), host


def test_the_example_of_the_page_is_what_happens() -> None:
    page = (REPOSITORY / "docs" / "protocol.md").read_text()
    lines = page.partition("## An example")[2].partition("```text\n")[2].partition("```")[0].splitlines()
    session, host = make_session([1, 0])
    sent = [line[2:] for line in lines if line.startswith(">")]
    expected = [json.loads(line[2:]) for line in lines if line.startswith("<")]
    got = []
    for frame in sent:
        session.receive(frame)
        if answer := session.frame():
            got.append(json.loads(answer))
    assert (len(sent), len(got)) == (5, 3)
    assert got == expected
    assert session.closed
    session.end()
    assert host.calls == [("begin", 10), ("take", 10, 1.0, False, False), ("take", 10, 1.0, True, False), ("leave", 10)]


def test_a_frame_holds_several_messages_in_the_clients_form() -> None:
    session, host = make_session()
    session.receive(msgpack.packb({**HELLO, "seats": 2}))
    assert msgpack.unpackb(session.frame()) == {"type": "welcome", "protocol": 1, "agent": "ppo", "seats": 2}
    array = {"dtype": "float64", "shape": [4], "data": np.arange(4.0).tobytes()}
    metric = {"type": "metric", "name": "height", "value": [1, 2.5], "seat": 1}
    session.receive(msgpack.packb([RESET, {**RESET, "seat": 1, "observation": array}, metric]))
    frame = session.frame()
    assert isinstance(frame, bytes)
    assert [(each["seat"], each["action"]) for each in msgpack.unpackb(frame)] == [(0, 0), (1, 1)]
    assert host.calls[-1] == ("metric", 11, "height", [1.0, 2.5])


HUGE = {"type": "box", "shape": [10**9, 10**9], "dtype": "uint8"}
BAD: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("protocol", [RESET], {}),
    ("protocol", [{**HELLO, "protocol": 2}], {}),
    ("token", [HELLO], {"token": "secret"}),
    ("token", [{**HELLO, "token": "other"}], {"token": "secret"}),
    ("message", [{**HELLO, "name": "../x y"}], {}),
    ("message", [{**HELLO, "exploit": 1}], {}),
    ("seat", [{**HELLO, "seats": 0}], {}),
    ("seat", [{**HELLO, "seats": 10**6}], {}),
    ("spaces", [{**HELLO, "spaces": {**CARTPOLE, "action": {"type": "discrete", "n": 3}}}], {}),
    (
        "spaces",
        [{**HELLO, "spaces": {**CARTPOLE, "observation": {"type": "box", "shape": [10**9, 10**9], "dtype": "uint8"}}}],
        {},
    ),
    ("spaces", [{**HELLO, "spaces": None}], {}),
    ("seat", [HELLO, {**RESET, "seat": 1}], {}),
    ("message", [HELLO, {**RESET, "seat": -1}], {}),
    ("message", [HELLO, {**RESET, "seat": True}], {}),
    ("order", [HELLO, STEP], {}),
    ("order", [HELLO, RESET, {**STEP, "terminated": True}, STEP], {}),
    ("message", [HELLO, RESET, {**STEP, "terminated": 1}], {}),
    ("message", [HELLO, RESET, {**STEP, "reward": "1"}], {}),
    ("value", [HELLO, RESET, {**STEP, "observation": [0, 0, 0]}], {}),
    ("value", [HELLO, RESET, {**STEP, "observation": [0, 0, 0, 1e999]}], {}),
    ("value", [HELLO, RESET, {**STEP, "observation": [0, 0, 0, "a"]}], {}),
    ("value", [HELLO, RESET, {**STEP, "observation": {"dtype": "object", "shape": [4], "data": b""}}], {}),
    ("value", [HELLO, RESET, {**STEP, "observation": [0, 0, 0, 1e39]}], {}),
    ("value", [HELLO, RESET, {**STEP, "reward": 1e39}], {}),
    ("message", [HELLO, RESET, {**STEP, "info": 3}], {}),
    ("message", [HELLO, {"type": "dance"}], {}),
    ("message", [HELLO, {"type": "metric", "name": "x", "value": []}], {}),
    ("message", [HELLO, 3], {}),
]


def test_a_token_with_half_a_character_is_a_wrong_one() -> None:
    session, _ = make_session(token="secret")
    with pytest.raises(ProtocolError) as caught:
        session.receive(json.dumps({**HELLO, "token": "\ud800"}))  # JSON may hold what UTF-8 lacks
    assert caught.value.code == "token"


@pytest.mark.parametrize(("code", "messages", "given"), BAD)
def test_bad_messages_have_a_code_and_a_line(code: str, messages: list[Any], given: dict[str, Any]) -> None:
    session, host = make_session(**given)
    for message in messages[:-1]:
        session.receive(msgpack.packb(message))
    with pytest.raises(ProtocolError) as caught:
        session.receive(msgpack.packb(messages[-1]))
    assert caught.value.code == code
    assert "wanted" in str(caught.value)
    assert "\n" not in str(caught.value)
    session.end()
    assert [call for call in host.calls if call[0] == "leave"] == [("leave", 10)] * (len(messages) > 1)


def test_a_message_before_the_action_is_out_of_order() -> None:
    session, _ = make_session([])
    session.receive(json.dumps([HELLO, RESET]))
    for message in (STEP, RESET):
        with pytest.raises(ProtocolError, match="wanted no message before the action") as caught:
            session.receive(json.dumps(message))
        assert (caught.value.code, caught.value.seat) == ("order", 0)


def test_no_room_is_busy_and_ends() -> None:
    session, _ = make_session()
    session.receive(json.dumps({**HELLO, "seats": 9}))
    assert json.loads(session.frame() or "") == {"type": "busy", "retry_after": 2.5}
    assert session.closed


@pytest.mark.parametrize(
    "frame", [b"", "", "{", "[" * 10**5, b"\xc1", b"\xdf\xff\xff\xff\xff", "NaN", '{"type": NaN}', b"\x93"]
)
def test_frames_that_cannot_be_read_are_errors(frame: str | bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        messages_of(frame)
    assert caught.value.code == "message"


def test_random_frames_are_answered_or_refused() -> None:
    """Ten thousand messages, whole, mutated and random: no other error, and every seat comes back."""
    draw = random.Random(1)
    good = [json.dumps(message) for message in (HELLO, RESET, STEP, {"type": "metric", "name": "x", "value": 1})]
    refused = 0
    session, host = make_session(list(range(2)) * 10**4)
    for _ in range(10_000):
        frame: str | bytes = draw.choice(good)
        if draw.random() < 0.3:
            text = list(str(frame))
            for _ in range(draw.randrange(1, 4)):
                text[draw.randrange(len(text))] = draw.choice('0129-.eE"{}[],:truefalsn\x00é')
            frame = "".join(text)
        if draw.random() < 0.2:
            frame = bytes(draw.randrange(256) for _ in range(draw.randrange(20)))
        try:
            session.receive(frame)
        except ProtocolError:
            refused += 1
            session.end()
        if session.closed:
            session, host = make_session(list(range(2)) * 10**4)
    assert 1000 < refused < 9000
    assert host.calls is not None


SPACES = [
    gymnasium.spaces.Box(-1.0, np.array([1.0, np.inf], np.float32), (2,), np.float32),
    gymnasium.spaces.Box(0, 255, (3, 2), np.uint8),
    gymnasium.spaces.Discrete(3, start=-1),
    gymnasium.spaces.MultiDiscrete([2, 3]),
    gymnasium.spaces.MultiBinary(4),
    gymnasium.spaces.Text(9),
    gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0.0, 1.0, ())]),
    gymnasium.spaces.Dict({"b": gymnasium.spaces.Discrete(2), "a": gymnasium.spaces.MultiBinary([2, 2])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_and_their_values_travel(space: Any) -> None:
    twin = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert twin == space
    space.seed(1)
    for _ in range(20):
        value = space.sample()
        assert space.contains(reader_of(twin)(json.loads(json.dumps(plain(value))), "observation")) or "float" in str(space)


BYTES = {"type": "box", "shape": [2], "dtype": "uint8"}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"type": "dict", "spaces": {str(key): {**BYTES, "shape": [2**22]} for key in range(5)}},
            "16,777,216 numbers in all, got 20,971,520",
        ),
        ({"type": "tuple", "spaces": 2 * [{"type": "tuple", "spaces": 600 * [BYTES]}]}, "1024 parts"),
        ({"type": "multi_binary", "shape": [2**25]}, "numbers"),
        ({"type": "discrete", "n": 2**61}, "^n: wanted at most 1,048,576, got 2305843009213693952"),
        ({"type": "multi_discrete", "nvec": [2**61, 2**61, 2**61, 2**61]}, "^nvec: wanted a sum of at most 1,048,576"),
        ({**BYTES, "low": -1}, "^low: wanted numbers of uint8, got -1"),
        ({**BYTES, "high": [1, 256]}, "^high: wanted numbers of uint8"),
        ({**BYTES, "high": 0.5}, "^high: wanted numbers of uint8"),
        ({**BYTES, "dtype": "bool", "high": 2}, "^high: wanted numbers of bool"),
    ],
    ids=str,
)
def test_spaces_that_are_too_large_or_whose_bounds_do_not_fit_are_refused(data: Any, line: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match=line):
        space_from_json(data)
    assert time.monotonic() - begun < 0.5  # nothing large is made


def test_actions_have_few_numbers() -> None:
    with pytest.raises(ValueError, match="^spaces: action: wanted at most 1,024 numbers"):
        read_spaces({**CARTPOLE, "action": {"type": "multi_binary", "shape": [2000]}})


def test_a_server_makes_no_spaces_that_are_much_larger_than_its_own() -> None:
    large = {"type": "box", "shape": [2**17], "dtype": "float32"}
    session, _ = make_session()
    with pytest.raises(ProtocolError, match="wanted at most 65,536 numbers in all, got 131,072"):
        session.receive(json.dumps({**HELLO, "spaces": {**CARTPOLE, "observation": large}}))
    own = Session(FakeHost(read_spaces({**CARTPOLE, "observation": large}), []), lambda: None)
    own.receive(json.dumps({**HELLO, "spaces": {**CARTPOLE, "observation": large}}))
    assert json.loads(own.frame() or "")["type"] == "welcome"


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint8"])
def test_whole_numbers_end_where_those_of_the_space_do(dtype: str) -> None:
    limits = np.iinfo(dtype)
    read = reader_of(gymnasium.spaces.Box(limits.min, limits.max, (1,), np.dtype(dtype).type))
    assert read([limits.max], "observation").tolist() == [limits.max]
    with pytest.raises(ProtocolError, match="wanted numbers from"):
        read(np.array([float(limits.max) + 1]), "observation")  # 2**63 is what the largest int64 is as a float
