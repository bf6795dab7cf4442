"""A served policy answers requests and clients as test mode acts, keeps what seats remember, and takes up new weights."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from websockets.sync.client import connect

from benchmarks.policy_server import play, request_of
from learner import launch
from learner.evaluation.test_mode import load_policy
from learner.policy_server import ActRequests, PolicyHost
from learner.runs.checkpoint import load_checkpoint
from serve.session import Outcome
from tests.learner.launching import trained
from tests.serve.playing import Player, free_port, playing
from wrappers import make_single_env
from wrappers.spaces import Packing

RUN = {"env": "CartPole-v1", "agent": "ppo", "core": "gru", "core_size": 8, "environment_max_steps": 200, "unroll_length": 10}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("served"), **RUN, frames_stacked=2).path


def ask(port: int, body: Any, path: str = "/act") -> tuple[int, Any]:
    """A request's status and answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data if path == "/act" else None, 10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def while_served(run: Path, work: Callable[[int], None], **given: Any) -> None:
    """Serve the run here while `work` talks to it in another thread. Raises the error of `work`."""
    port, errors = free_port(), list[BaseException]()

    def talk() -> None:
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                try:
                    ask(port, None, "/health")
                    break
                except OSError:
                    time.sleep(0.05)
            work(port)
        except BaseException as error:  # the test's thread raises it
            errors.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=talk)
    job = launch.prepare("serve", {"load": str(run), "bind": f"127.0.0.1:{port}", "greedy": True, **given}, ["main.py"])
    thread.start()
    assert launch.run(job) == 0
    thread.join()
    if errors:
        raise errors[0]


def test_requests_are_answered_as_test_mode_acts(run_folder: Path) -> None:
    checkpoint = load_checkpoint(sorted((run_folder / "checkpoints").glob("update_*.pt"))[-1])
    plan = launch.prepare("test", {"load": str(run_folder), "greedy": True}, ["main.py"]).plan
    policy = load_policy(plan, checkpoint, 1)
    observations = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    stacks = [np.stack([observations[t - 1] if t else np.zeros(4, np.float32), observations[t]]) for t in range(6)]
    remembered = [int(policy.choose(stack[None], np.array([t == 0])).actions[0]) for t, stack in enumerate(stacks)]
    alone = [int(policy.choose(np.stack([np.zeros(4, np.float32), each])[None]).actions[0]) for each in observations]

    def work(port: int) -> None:
        for _ in range(2):  # `first` begins an episode anew
            found = [
                ask(port, {"observation": each.tolist(), "seat": "robot", "first": t == 0})[1]["action"]
                for t, each in enumerate(observations)
            ]
            assert found == remembered
        assert ask(port, {"observations": observations.tolist()})[1]["actions"] == alone
        for body, code in (
            ({"observation": [1, 2, 3]}, "value"),
            ({"observation": [1, 2, 3, None]}, "value"),
            ({}, "message"),
            (b"\xff", "message"),
            ({"observations": []}, "message"),
            ({"observation": [0] * 4, "seat": 7}, "message"),
            ({"observation": [0] * 4, "first": "x"}, "message"),
            ({"observation": [0] * 4, "seat": "new", "first": "x"}, "message"),
        ):
            status, answer = ask(port, body)
            assert (status, answer["error"]["code"]) == (400, code)
        assert ask(port, {"observation": [0] * 4, "task": "CartPole-v1"})[0] == 200  # its only one
        status, answer = ask(port, {"observation": [0] * 4, "task": "Catch-v0"})
        assert (status, answer["error"]["message"]) == (400, "task: wanted CartPole-v1, got Catch-v0")
        status, answer = ask(port, b" " * 300_000)
        assert (status, answer["error"]["code"]) == (413, "size")
        assert ask(port, None, "/spaces")[1]["action"] == {"type": "discrete", "n": 2, "start": 0}
        assert ask(port, None, "/nowhere")[0] == 404
        assert ask(port, None, "/status")[1]["version"] == checkpoint.counters.updates

    while_served(run_folder, work, client_megabytes=0.2)


@pytest.mark.parametrize("number", ["1e39", "3e38", "1e300"])
def test_a_number_too_large_for_the_policy_costs_only_its_own_client(run_folder: Path, number: str) -> None:
    """Some of these numbers are finite in float32, but not what the network makes of them."""

    def work(port: int) -> None:
        bad = json.loads(f"[[0, 0, 0, 0], [{number}, -{number}, {number}, {number}]]")
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda each: ask(port, {"observation": each}), 3 * bad))
        assert [status for status, _ in answers] == 3 * [200, 400]
        assert {answer["error"]["code"] for status, answer in answers if status == 400} == {"value"}
        assert ask(port, {"observation": bad[1], "seat": "a"})[0] == 400
        assert ask(port, {"observation": bad[0], "seat": "a"})[0] == 200  # the seat remembers nothing of the bad one
        with connect(f"ws://127.0.0.1:{port}/connect") as client:
            hello = {"type": "hello", "protocol": 1, "name": "x", "spaces": ask(port, None, "/spaces")[1]}
            client.send(json.dumps(hello))
            assert json.loads(client.recv(timeout=5))["type"] == "welcome"
            client.send(json.dumps({"type": "reset", "seat": 0, "observation": bad[1]}))
            assert json.loads(client.recv(timeout=5))["code"] == "value"
        assert ask(port, {"observation": bad[0]})[0] == 200

    while_served(run_folder, work)


def test_a_failure_of_the_server_ends_it(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: ActRequests) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(ActRequests, "forget_unused", fail)
    job = launch.prepare("serve", {"load": str(run_folder), "bind": f"127.0.0.1:{free_port()}"}, ["main.py"])
    timer = threading.Timer(10, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert launch.run(job) == 1
    timer.cancel()
    assert "RuntimeError: broken" in capsys.readouterr().out


def test_the_benchmark_counts_an_answer_for_each_request(run_folder: Path) -> None:
    def work(port: int) -> None:
        requests = [request_of(np.array([0, 0, 0, number], np.float32)) for number in range(3)]
        latencies = play(port, clients=3, requests=requests, seconds=0.3)
        assert len(latencies)
        assert (latencies > 0).all()
        # Each of the three clients has a request under way when time is up.
        assert len(latencies) <= ask(port, None, "/status")[1]["steps"] <= len(latencies) + 3
        with pytest.raises(RuntimeError, match="wanted numbers of shape"):
            play(port, clients=1, requests=[request_of(np.zeros(3, np.float32))], seconds=0.3)

    while_served(run_folder, work)


def test_clients_play_and_new_weights_are_taken_up(run_folder: Path) -> None:
    def work(port: int) -> None:
        ended = threading.Event()
        player = Player(f"ws://127.0.0.1:{port}", lambda: gymnasium.make("CartPole-v1"), seats=3, stop=ended.is_set)
        with playing(player):
            end = time.monotonic() + 20
            while len(player.returns) < 3 and time.monotonic() < end:
                time.sleep(0.02)
            newest = sorted((run_folder / "checkpoints").glob("update_*.pt"))[-1]
            copy = newest.with_name("update_000009999.pt")
            copy.write_bytes(newest.read_bytes())
            while ask(port, None, "/status")[1]["version"] != 9999:
                assert time.monotonic() < end
                time.sleep(0.1)
            copy.unlink()
            ended.set()
        assert len(player.returns) >= 3

    while_served(run_folder, work)


def test_a_token_is_wanted(run_folder: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")

    def work(port: int) -> None:
        assert ask(port, {"observation": [0] * 4})[0] == 401
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/act", b'{"observation": [0, 0, 0, 0]}', {"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    while_served(run_folder, work, token_file=str(token))


def test_a_body_that_does_not_end_is_refused(run_folder: Path) -> None:
    def work(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
            asking.sendall(b"POST /act HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
            assert asking.recv(1 << 16).startswith(b"HTTP/1.1 408 ")

    while_served(run_folder, work, client_timeout=1.0)


class Recorder:
    """Takes action 1 for every observation, and keeps the observations."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def choose(self, stacks: np.ndarray, first: np.ndarray, seats: np.ndarray) -> Any:
        self.seen.extend(stacks)
        return SimpleNamespace(actions=torch.ones(len(stacks), dtype=torch.int64))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"env": "CartPole-v1", "core_inputs": True, "core": "gru"}, id="the last action and reward"),
        pytest.param({"env": "Catch-v0,Avoid-v0", "task_input": True, "network": "mlp"}, id="the task"),
        pytest.param({"env": "Catch-v0,Avoid-v0", "task_input": True, "core_inputs": True, "core": "gru"}, id="both"),
    ],
)
def test_a_served_policy_sees_what_environments_of_the_program_give(given: dict[str, Any]) -> None:
    plan = launch.prepare("train", {"agent": "ppo", "frames_stacked": 3, **given}, ["main.py"]).plan
    env, policy = make_single_env(plan.config.env), Recorder()
    host = PolicyHost(plan, policy, 1)  # type: ignore[arg-type]  # what it needs of a policy
    wanted = []
    for seed in (4, 5):  # an episode of each task
        seat = host.new_seat(host.task_of(plan.spec.tasks[seed % len(plan.spec.tasks)]) if host.inputs.reads_task else 0)
        observations, reward, first = env.reset(seed), 0.0, True
        for _ in range(6):
            wanted.append(observations[0])
            frame = Packing(plan.spec.leaves).unpack(observations[:, -1])["observation"][0]
            host.ask(
                seat, Outcome(frame, {}, None, reward), first=first, reply=lambda action, version: None, refuse=pytest.fail
            )
            host.act()
            step = env.step(np.ones(1, np.int64))
            observations, reward, first = step.observations, float(step.rewards[0]), False
    env.close()
    np.testing.assert_array_equal(policy.seen, wanted)


def test_a_policy_of_several_environments_is_told_which_one_is_played(tmp_path: Path) -> None:
    run = trained(tmp_path, env="Catch-v0,Avoid-v0", agent="ppo", task_input=True, environment_max_steps=200)

    def work(port: int) -> None:
        frame = np.zeros((10, 5)).tolist()
        for task, got in ((None, "none"), ("CartPole-v1", "CartPole-v1")):
            status, answer = ask(port, {"observation": frame, "task": task})
            assert (status, answer["error"]["message"]) == (400, f"task: wanted Catch-v0 or Avoid-v0, got {got}")
        assert ask(port, {"observation": frame, "task": ["Avoid-v0"]})[0] == 400
        assert ask(port, {"observation": frame, "task": "Avoid-v0"})[0] == 200
        assert ask(port, {"observation": frame, "task": "Avoid-v0", "reward": "much"})[1]["error"]["code"] == "message"
        # A seat keeps its task until an episode of another one begins.
        seat: dict[str, Any] = {"observation": frame, "seat": "a"}
        for more, wanted in (
            ({"task": "Catch-v0"}, 200),
            ({}, 200),
            ({"task": "Catch-v0"}, 200),
            ({"task": "Avoid-v0"}, 400),
            ({"task": "Nope"}, 400),
            ({"task": "Avoid-v0", "first": True}, 200),
            ({"task": "Catch-v0"}, 400),
        ):
            assert ask(port, {**seat, **more})[0] == wanted, more
        status, answer = ask(port, {"observations": [frame], "task": "Avoid-v0", "seat": "a"})
        assert (status, answer["error"]["message"].partition(",")[0]) == (400, "seat: wanted none with observations")
        for name, kind in (("test", "error"), ("Catch-v0", "welcome")):
            with connect(f"ws://127.0.0.1:{port}/connect") as client:
                client.send(json.dumps({"type": "hello", "protocol": 1, "name": name, "spaces": ask(port, None, "/spaces")[1]}))
                assert json.loads(client.recv(timeout=5))["type"] == kind

    while_served(run.path, work)
