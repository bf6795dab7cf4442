"""The Python client plays, learns of ends and of broken connections, and follows what a server asks for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from springbok_client import Finished, RemoteAgent, ServerError, reset_message, step_message
from springbok_client.connection import Connection, ConnectionLost
from websockets.server import ServerProtocol

from tests.clients.fake_server import FakeServer, running

BOX = {"type": "box", "shape": [2], "dtype": "float32", "low": None, "high": None}
CHOICE = {"type": "discrete", "n": 3, "start": 5}
OBSERVATION = np.array([0.5, -1.0], np.float32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("springbok_client.agent.FIRST_PAUSE", 0.01)


def make(server: FakeServer, **options: Any) -> RemoteAgent:
    return RemoteAgent(server.url, BOX, CHOICE, name="Toy-v0", **options)


def play(agent: RemoteAgent, length: int) -> int:
    """An episode of this length, as a user's loop plays it. Returns the number of its actions."""
    action, actions = agent.reset(OBSERVATION), 0
    while action is not None:
        assert action in (5, 6, 7)
        actions += 1
        action = agent.step(OBSERVATION, 1.0, terminated=actions == length)
    return actions


@pytest.mark.parametrize("binary", [True, False])
def test_an_episode_is_played(server: FakeServer, binary: bool) -> None:
    with make(server, binary=binary, exploit=True, token="secret") as agent:
        assert play(agent, 3) == 3
        assert agent.agent == "random"
    [hello] = server.hellos
    assert (hello["spaces"]["action"], hello["exploit"], hello["token"], hello["seats"]) == (CHOICE, True, "secret", 1)
    assert [message["type"] for message in server.messages] == ["reset", "step", "step", "step", "close"]
    sent = server.messages[1]["observation"]
    assert sent == ({"dtype": "float32", "shape": [2], "data": OBSERVATION.tobytes()} if binary else [0.5, -1.0])
    assert [message["terminated"] for message in server.messages[1:4]] == [False, False, True]


def test_masks_infos_and_metrics_are_sent(server: FakeServer) -> None:
    with make(server, mask=True) as agent:
        agent.reset(OBSERVATION, mask=np.array([1, 0, 1], np.uint8))
        info = {"is_success": np.bool_(True), "distance": np.float32(0.5), "text": "no number", "lost": float("nan")}
        agent.step(OBSERVATION, 0, mask=[0, 1, 1], info=info)
        agent.metric("level", 3)
        agent.metric("levels", [1.0, 2.0])
        agent.step(OBSERVATION, 0, truncated=True)
    reset, step, level, levels, *_ = server.messages
    assert (reset["mask"], step["mask"]) == ([1, 0, 1], [0, 1, 1])
    assert step["info"] == {"is_success": True, "distance": 0.5}
    assert (level["name"], level["value"], levels["value"]) == ("level", 3.0, [1.0, 2.0])


@pytest.mark.parametrize("mask", [[1, 256, 1], [0.5, 1, 0], [1, -1, 0]])
def test_a_mask_of_other_numbers_is_refused(server: FakeServer, mask: list[float]) -> None:
    with make(server, mask=True) as agent, pytest.raises(ValueError, match="mask: wanted numbers 0 and 1, got"):
        agent.reset(OBSERVATION, mask=mask)


def test_a_mask_of_several_choices_may_have_parts_and_an_info_large_numbers(server: FakeServer) -> None:
    with make(server, mask=True) as agent:
        agent.reset(OBSERVATION, mask=(np.array([1, 0]), np.array([1, 1, 0])))
        agent.step(OBSERVATION, 0, mask=[1, 1, 1], info={"seed": 2**128, "more": 10**400, "least": -(2**63)})
        agent.step(OBSERVATION, 0, truncated=True)
    reset, step, *_ = server.messages
    assert reset["mask"] == [1, 0, 1, 1, 0]
    assert step["info"] == {"seed": 2.0**128, "least": -(2**63)}


def test_a_server_that_ends_at_the_welcome_is_asked_again(server: FakeServer) -> None:
    server.closing = 2
    with make(server) as agent:
        assert play(agent, 3) == 3
    assert len(server.hellos) == 3


def test_a_server_without_room_may_say_so_in_its_first_packet() -> None:
    """The answer to the handshake, `busy` and the end come together."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            with listening.accept()[0] as accepted:
                protocol = ServerProtocol()
                protocol.receive_data(accepted.recv(1 << 16))
                protocol.send_response(protocol.accept(protocol.events_received()[0]))
                protocol.send_text(b'{"type": "busy", "retry_after": 7.5}')
                protocol.send_close(1008)
                accepted.sendall(b"".join(protocol.data_to_send()))

        thread = threading.Thread(target=refuse)
        thread.start()
        connection = Connection(f"ws://127.0.0.1:{listening.getsockname()[1]}", binary=False, timeout=5.0)
        thread.join()
        with pytest.raises(ConnectionLost):
            connection.send(b"{}")
        assert connection.last_words() == [{"type": "busy", "retry_after": 7.5}]
        connection.abort()


def test_a_name_that_no_host_can_have_is_one_line() -> None:
    with pytest.raises(ConnectionError, match=r"^ws://a\.\.b:7001: "):
        RemoteAgent("ws://a..b:7001", BOX, CHOICE, name="Toy-v0").reset(OBSERVATION)


def test_a_broken_connection_ends_the_episode_and_the_next_one_is_whole(server: FakeServer) -> None:
    server.drop_after = [4]  # the third step of the first episode
    with make(server) as agent:
        assert [play(agent, 5) for _ in range(3)] == [3, 5, 5]
        assert agent.given_up == 1
    assert len(server.hellos) == 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_ctrl_c_while_a_frame_is_read_leaves_a_client_that_ends_or_goes_on(server: FakeServer, goes_on: bool) -> None:
    with make(server) as agent:
        assert agent.reset(OBSERVATION) is not None
        assert agent._connection is not None
        with pytest.raises(KeyboardInterrupt):  # the parser of frames is a generator, which an exception ends
            agent._connection._protocol.parser.throw(KeyboardInterrupt())
        if goes_on:
            assert play(agent, 3) == 3
    assert server.messages[-1] == {"type": "close"}


def test_a_reset_that_gets_no_answer_is_sent_again(server: FakeServer) -> None:
    server.drop_after = [1]
    with make(server) as agent:
        assert play(agent, 2) == 2
        assert agent.given_up == 0
    assert [message["type"] for message in server.messages] == ["reset", "reset", "step", "step", "close"]


def test_a_busy_server_is_asked_again(server: FakeServer) -> None:
    server.busy = 2
    with make(server, patience=0) as agent:
        assert play(agent, 2) == 2
    assert server.busy == 0


def test_the_client_rotates_between_episodes(server: FakeServer) -> None:
    server.rotate_after = 2
    with make(server) as agent:
        assert [play(agent, 4) for _ in range(3)] == [4, 4, 4]
        assert agent.given_up == 0
    assert len(server.hellos) == 3


def test_rotation_waits_for_all_seats_and_loses_no_episode(server: FakeServer) -> None:
    server.rotate_after = 3
    lengths, played, lost = [3, 5], [0, 0], 0
    with make(server, seats=2) as agent:
        agent.send([reset_message(seat, OBSERVATION) for seat in range(2)])
        for _ in range(30):
            messages = []
            for seat, action, _version in agent.receive():
                lost += action is None
                played[seat] += 1
                ends = played[seat] % lengths[seat] == 0
                messages.append(step_message(seat, OBSERVATION, 1.0, terminated=ends))
                messages += [reset_message(seat, OBSERVATION)] if ends else []
            agent.send(messages)
        assert len(server.hellos) > 1
    assert lost == 0


def test_seats_in_turn_do_not_wait_for_each_other_to_rotate(server: FakeServer) -> None:
    server.rotate_after = 2
    with make(server, seats=2) as agent:
        assert agent.reset(OBSERVATION, seat=0) is not None
        assert agent.reset(OBSERVATION, seat=1) is not None
        assert agent.step(OBSERVATION, 1.0, terminated=True, seat=0) is None
        assert agent.reset(OBSERVATION, seat=0) is not None  # while seat 1 plays
        assert agent.step(OBSERVATION, 1.0, seat=1) is not None
    assert len(server.hellos) == 1


def test_every_seat_learns_that_its_episode_is_given_up(server: FakeServer) -> None:
    server.drop_after = [4]
    with make(server, seats=3) as agent:
        agent.send([reset_message(seat, OBSERVATION) for seat in range(2)])
        assert sorted(answer.seat for answer in agent.receive()) == [0, 1]
        agent.send([step_message(0, OBSERVATION, 1.0), reset_message(2, OBSERVATION)])
        answers = agent.receive()
        assert sorted((answer.seat, answer.action) for answer in answers) == [(0, None), (1, None)]
        agent.send([reset_message(0, OBSERVATION)])
        answers = agent.receive()  # the reset of seat 2 is sent again with that of seat 0
        assert sorted(answer.seat for answer in answers if answer.action) == [0, 2]
        assert agent.given_up == 2


def test_messages_of_several_seats_are_one_frame(server: FakeServer) -> None:
    with make(server, seats=4) as agent:
        agent.send([reset_message(seat, OBSERVATION) for seat in range(4)])
        assert len(agent.receive()) == 4
        assert server.frames == 2
        assert agent.receive() == []  # no seat waits for an action


@pytest.mark.parametrize("code", ["value", "rate"])
def test_a_refusal_is_one_exception_and_the_client_may_go_on(server: FakeServer, code: str) -> None:
    server.error_at = {2: code}
    with make(server) as agent:
        agent.reset(OBSERVATION)
        with pytest.raises(ServerError, match=f"{code}: a test asked for this") as error:
            agent.step(OBSERVATION, 1.0)
        assert error.value.code == code
        assert play(agent, 1) == 1


def test_a_slow_environment_learns_that_the_run_is_over(server: FakeServer) -> None:
    server.error_at, server.close_timeout = {2: "finished"}, 0.01
    with make(server, patience=0) as agent:
        agent.reset(OBSERVATION)
        agent.metric("level", 3)
        wait_for_the_end(server)
        with pytest.raises(Finished):
            agent.step(OBSERVATION, 1.0)


def test_an_end_that_comes_with_an_action_gives_up_the_episode(server: FakeServer) -> None:
    with make(server) as agent:
        agent.reset(OBSERVATION)
        assert agent._connection is not None
        agent._connection._parse(bytes([0x88, 2, 3, 233]))  # a frame that ends the connection with code 1001
        assert agent.step(OBSERVATION, 1.0) is None
        assert play(agent, 2) == 2


def test_a_frame_over_the_servers_limit_is_a_refusal() -> None:
    server = FakeServer()
    server.most_bytes = 1000
    space = BOX | {"shape": [1000]}
    with running(server), RemoteAgent(server.url, space, CHOICE, name="Toy-v0", patience=0) as agent:
        with pytest.raises(ServerError, match="size: wanted a frame within .*, got a larger one") as error:
            agent.reset(np.zeros(1000))
        assert error.value.code == "size"


def wait_for_the_end(server: FakeServer) -> None:
    while not server.messages or server.open:
        time.sleep(0.01)


def test_a_wrong_token_is_a_refusal(server: FakeServer) -> None:
    server.token = "secret"
    with make(server, token="other") as agent, pytest.raises(ServerError, match="token"):
        agent.reset(OBSERVATION)


def test_a_server_that_ends_is_tried_again(server: FakeServer) -> None:
    server.error_at = {3: "closing"}
    with make(server) as agent:
        assert [play(agent, 4) for _ in range(2)] == [2, 4]


def test_a_missing_server_is_an_error_once_the_patience_ends() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        agent = RemoteAgent(url, BOX, CHOICE, name="Toy-v0", patience=0.1)
        with pytest.raises(ConnectionError, match=f"{url}: Connection refused"):
            agent.reset(OBSERVATION)


def test_a_silent_server_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        agent = RemoteAgent(url, BOX, CHOICE, name="Toy-v0", patience=0, timeout=0.1)
        with pytest.raises(ConnectionError, match="silent"):
            agent.reset(OBSERVATION)


def test_a_slow_server_is_waited_for(server: FakeServer) -> None:
    release = threading.Event()
    server.act = lambda space: 6 if release.wait(5) else 5
    timer = threading.Timer(0.35, release.set)  # longer than the timeout, and shorter than until the server is gone
    with make(server, timeout=0.25) as agent:
        timer.start()
        assert agent.reset(OBSERVATION) == 6


def test_a_server_of_something_else_is_an_error_at_once(server: FakeServer) -> None:
    agent = RemoteAgent(f"{server.url}/other", BOX, CHOICE, name="Toy-v0")
    with pytest.raises(ConnectionError, match="HTTP status 404"):
        agent.reset(OBSERVATION)


def test_values_that_are_refused_leave_all_seats_as_they_were(server: FakeServer) -> None:
    with make(server, seats=2, patience=0) as agent:
        with pytest.raises(ValueError, match="observation: wanted shape"):
            agent.send([reset_message(0, OBSERVATION), reset_message(1, np.zeros(3))])
        assert agent.receive() == []  # no seat waits for an action
        agent.send([reset_message(seat, OBSERVATION) for seat in range(2)])
        assert len(agent.receive()) == 2
        with pytest.raises(ValueError, match="observation: wanted shape"):
            agent.send([step_message(0, OBSERVATION, 1.0, terminated=True), step_message(1, np.zeros(3), 1.0)])
        assert agent.step(OBSERVATION, 1.0, seat=0) is not None
    assert [message["type"] for message in server.messages] == ["reset", "reset", "step", "close"]


def test_numbers_that_json_lacks_leave_a_seat_as_it_was(server: FakeServer) -> None:
    with make(server, binary=False, patience=0) as agent:
        for _ in range(2):
            with pytest.raises(ValueError, match="JSON"):
                agent.reset(np.full(2, np.nan))
        assert agent.reset(OBSERVATION) is not None
        with pytest.raises(ValueError, match="JSON"):
            agent.step(OBSERVATION, float("nan"))
        assert agent.step(OBSERVATION, 1.0) is not None


def test_wrong_input_is_a_value_error(server: FakeServer) -> None:
    with pytest.raises(ValueError, match="url: wanted ws://HOST:PORT or wss://HOST:PORT, got '127.0.0.1:7001'"):
        RemoteAgent("127.0.0.1:7001", BOX, CHOICE, name="Toy-v0")
    with pytest.raises(ValueError, match="seats: wanted a number >= 1, got 0"):
        make(server, seats=0)
    with pytest.raises(ValueError, match="action_space: wanted the type box, .*, got text"):
        RemoteAgent(server.url, BOX, {"type": "text", "max_length": 3}, name="Toy-v0")
    with make(server) as agent:
        with pytest.raises(ValueError, match="seat 0: wanted reset before step"):
            agent.step(OBSERVATION, 1.0)
        with pytest.raises(ValueError, match="seat: wanted 0 to 0, got 1"):
            agent.reset(OBSERVATION, seat=1)
        with pytest.raises(ValueError, match=r"observation: wanted shape \(2,\), got \(3,\)"):
            agent.reset(np.zeros(3))
        assert play(agent, 1) == 1
