"""The page of a server in a real browser: it shows the server's numbers, and its game is a client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.clients.browser import CHROMIUM, Page, opened
from tests.clients.fake_server import FakeServer, running

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

CARTPOLE = {
    "observation": {"type": "box", "shape": [4], "dtype": "float32", "low": None, "high": None},
    "action": {"type": "discrete", "n": 2, "start": 0},
    "mask": False,
}
STATUS: dict[str, Any] = {
    "agent": "ppo",
    "environment": "CartPole-v1",
    "uptime": 3725,
    "clients": [
        {"name": "CartPole-v1", "seats": 4, "exploit": False, "steps": 51234, "episodes": 790, "return_mean": 87.25},
        {"name": "<b>Robot</b>", "seats": 1, "exploit": True, "steps": 900, "episodes": 2, "return_mean": 480},
    ],
    "seats": 5,
    "steps": 52134,
    "steps_per_second": 1234.5,
    "episodes": 812,
    "return_mean": 87.25,
    "version": 407,
    "latency_ms": {"p50": 1.25, "p99": 4.5},
    "curve": [[steps, 20 + 180 * (1 - math.exp(-steps / 20000))] for steps in range(0, 52000, 1000)],
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture(scope="module")
def browser(server: FakeServer) -> Iterator[Page]:
    with opened("about:blank") as page:
        yield page


@pytest.fixture
def page(server: FakeServer, browser: Page) -> Page:
    """The page of a server of CartPole, freshly loaded."""
    server.status, server.spaces = dict(STATUS), CARTPOLE
    server.token, server.act = "", lambda space: 1
    server.hellos.clear()
    server.messages.clear()
    show(browser, server)
    return browser


def show(page: Page, server: FakeServer) -> None:
    page.call("Page.navigate", url=server.url.replace("ws:", "http:") + "/")
    page.wait_for("document.querySelector('#state')?.className === ''")


def test_the_numbers_of_the_server_are_shown(page: Page) -> None:
    numbers = page.text("#numbers").split("\n")
    shown = dict(zip(numbers[::2], numbers[1::2], strict=True))
    assert shown["Steps"] == "52,134"
    assert shown["Latency p50, p99"] == "1.3, 4.5 ms"
    assert page.text("#state") == "running for 1 h 2 min"
    assert page.text("#what") == "ppo · CartPole-v1"
    first, second = page.text("#rows").splitlines()
    assert first.split("\t") == ["CartPole-v1", "4", "51,234", "790", "87.25"]
    assert second.startswith("<b>Robot</b>greedy")  # a name is text, never a part of the page
    points = page.run("document.querySelector('#curve polyline').getAttribute('points').split(' ').length")
    assert points == len(STATUS["curve"])


def test_numbers_change_and_a_server_that_ends_is_told(page: Page, server: FakeServer) -> None:
    server.status = {"agent": "ppo", "clients": [], "steps": 60000}
    page.wait_for("document.querySelector('#numbers').innerText.includes('60,000')")
    assert page.text("#numbers").split("\n") == ["Steps", "60,000"]
    assert page.text("#nobody") == "No client is connected."
    server.status = None
    page.wait_for("document.querySelector('#state').className === 'off'")


def test_the_game_is_a_client_whose_physics_are_those_of_gymnasium(page: Page, server: FakeServer) -> None:
    page.run("const speed = document.querySelector('#speed'); speed.value = 10; speed.oninput(); play.click()")
    page.wait_for("document.querySelector('#score').innerText.startsWith('episode ')")
    page.run("play.click()")
    [hello] = server.hellos
    assert (hello["name"], hello["exploit"], hello["spaces"]) == ("CartPole-v1", False, CARTPOLE)
    episode = server.messages[: next(index for index, each in enumerate(server.messages) if each.get("terminated")) + 1]
    environment: Any = gymnasium.make("CartPole-v1").unwrapped
    environment.reset()
    environment.state = np.array(episode[0]["observation"], np.float64)
    assert abs(environment.state).max() <= 0.05
    assert len(episode) > 5
    for message in episode[1:]:
        observation, reward, terminated, _, _ = environment.step(1)
        assert np.allclose(message["observation"], observation, rtol=1e-5, atol=1e-7)
        assert (message["reward"], message["terminated"], message["truncated"]) == (reward, terminated, False)


def test_greedy_play_is_another_connection(page: Page, server: FakeServer) -> None:
    page.run("play.click()")
    page.wait_for("document.querySelector('#score').innerText !== 'connecting …'")
    page.run("greedy.click()")
    for _ in range(100):
        if len(server.hellos) == 2:
            break
        page.wait_for("new Promise((resolve) => setTimeout(() => resolve(true), 50))")
    page.run("play.click()")
    assert [hello["exploit"] for hello in server.hellos] == [False, True]


def test_a_server_with_a_token_asks_for_it(page: Page, server: FakeServer) -> None:
    server.token = "secret"
    page.run("play.click()")
    page.wait_for("!document.querySelector('#token').hidden")
    page.run("const field = document.querySelector('#token input'); field.value = 'secret'; field.onchange({target: field})")
    page.wait_for("document.querySelector('#score').innerText.startsWith('episode ')")
    page.run("play.click(); sessionStorage.clear()")
    assert server.hellos[-1]["token"] == "secret"


def test_other_spaces_hide_the_game(page: Page, server: FakeServer) -> None:
    server.spaces = {**CARTPOLE, "action": {"type": "box", "shape": [1], "dtype": "float32", "low": -1, "high": 1}}
    show(page, server)
    assert page.text("#other").endswith("observations of the kind box 4 and actions of the kind box 1.")
    assert page.run("document.querySelector('#game').hidden")


def test_the_game_may_be_the_first_client(page: Page, server: FakeServer) -> None:
    server.status, server.spaces = {"waiting": True}, {}
    show(page, server)
    assert page.text("#state") == "waiting for the first client"
    page.run("play.click()")
    page.wait_for("document.querySelector('#score').innerText.startsWith('episode ')")
    page.run("play.click()")
    assert server.hellos[0]["spaces"]["observation"]["high"][1] is None


@pytest.mark.parametrize("width", [1200, 360])
def test_nothing_is_wider_than_the_window_and_nothing_fails(page: Page, width: int) -> None:
    page.resize(width, 800, "dark")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.problems == []
