"""Training with environments that are clients: every kind of agent, space and failure, in real runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gymnasium
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from learner import launch
from learner.runs.checkpoint import load_checkpoint
from learner.runs.directory import RunDirectory
from tests.serve.playing import Player, free_port, playing

QUICK = {
    "log_period": 1e5,
    "network": "mlp",
    "hidden_sizes": "16",
    "learner_threads": 1,
    "prepared_batches": 0,
    "calibrate_input": False,
}


class Masked(gymnasium.Env[Any, Any]):
    """Two parts of an observation, and a mask that allows one action only, which pays."""

    def __init__(self) -> None:
        parts = {"place": gymnasium.spaces.Discrete(3), "picture": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)}
        self.observation_space = gymnasium.spaces.Dict(parts)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def _observe(self) -> Any:
        self.place = int(self.np_random.integers(3))
        picture = np.full((8, 8, 3), 80 * self.place, np.uint8)
        return {"place": self.place, "picture": picture}, {"action_mask": np.eye(3, dtype=np.int64)[self.place]}

    def step(self, action: int) -> Any:
        assert action == self.place, "the only legal action"
        self.steps += 1
        observation, info = self._observe()
        return observation, 1.0, False, self.steps == 5, info


class StatusReader(Player):
    """Reads the numbers of the server's page too, while it plays, and sends a metric. status: the newest."""

    status: dict[str, Any]

    def _step(self, answer: dict[str, Any], totals: list[float]) -> list[dict[str, Any]]:
        messages = super()._step(answer, totals)
        if self.steps % 50 == 1:
            with urlopen(f"{self._url.replace('ws:', 'http:')}/status", timeout=5) as body:
                self.status = json.loads(body.read())
            messages.append({"type": "metric", "name": "level", "value": [1.5, 40.0, 40.0]})
        return messages


def train(
    results: Path, make: Any, agent: str, port: int, mode: str = "train", **given: Any
) -> tuple[int, RunDirectory, StatusReader]:
    """A run, and the clients that played in it."""
    ended = threading.Event()
    hello = given.pop("hello", {})
    player = StatusReader(f"ws://127.0.0.1:{port}", make, seats=2, stop=ended.is_set, **hello)
    settings = {"results_dir": str(results), "worker_kind": "served", "bind": f"127.0.0.1:{port}", "agent": agent, **QUICK}
    if mode != "train":
        settings = {"load": str(results / "latest")}
    with playing(player):
        try:
            code = launch.run(launch.prepare(mode, {**settings, **given}, ["main.py"]))
        finally:
            ended.set()
    return code, RunDirectory((results / "latest").resolve()), player


@pytest.mark.parametrize(
    ("agent", "make", "given"),
    [
        ("vtrace", Masked, {"hello": {"mask": True}, "unroll_length": 6, "batch_size": 4, "calibrate_input": True}),
        ("dqn", lambda: gymnasium.make("CartPole-v1"), {"learning_starts": 50, "unroll_length": 10}),
        ("sac", lambda: gymnasium.make("Pendulum-v1"), {"learning_starts": 50, "unroll_length": 10, "batch_size": 16}),
        (
            "r2d2",
            lambda: gymnasium.make("CartPole-v1"),
            {
                "unroll_length": 8,
                "burn_in": 4,
                "learning_starts": 40,
                "batch_size": 4,
                "core": "lstm",
                "core_size": 8,
                "updates_per_step": 0.2,
            },
        ),
    ],
)
def test_agents_learn_from_clients(agent: str, make: Any, given: dict[str, Any], tmp_path: Path) -> None:
    code, run, player = train(tmp_path, make, agent, free_port(), environment_max_steps=300, **given)
    assert code == 0
    checkpoint = load_checkpoint(run.checkpoint_paths()[-1])
    assert checkpoint.counters.steps >= 300
    assert checkpoint.counters.updates > 0
    assert player.steps >= 200
    assert checkpoint.settings["env"] == "served:test"
    if given.get("calibrate_input"):  # by random play, in legal actions
        weights = checkpoint.agent["modules"]["network"]
        means = [float(weights[name].mean()) for name in weights if name.endswith("mean") and weights[name].ndim > 1]
        assert sorted(means) == pytest.approx([80 / 255, 1 / 3], abs=0.02)  # of the picture and of the place


def test_an_on_policy_run_resumes_with_its_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)  # noqa: E731  (one name for two calls)
    given = {"batch_size": 3, "unroll_length": 16}
    code, run, _ = train(tmp_path, make, "ppo", port, environment_max_steps=300, **given)
    assert code == 0
    before = load_checkpoint(run.checkpoint_paths()[-1]).counters
    # The second command names no environment and waits for no client: the checkpoint has the spaces.
    code, run, player = train(tmp_path, make, "ppo", port, "train_w_load", environment_max_steps=600)
    assert code == 0
    after = load_checkpoint(run.checkpoint_paths()[-1]).counters
    assert (after.steps, after.updates) == (624, 2 * before.updates - 1)
    assert after.episodes > before.episodes
    assert player.returns
    status = player.status
    assert (status["environment"], status["agent"], status["seats"]) == ("test", "ppo", 2)
    assert status["steps"] > before.steps  # those of the first command count
    assert status["steps"] - before.steps == pytest.approx(player.steps, abs=60)
    assert status["version"] >= before.updates
    (client,) = status["clients"]
    assert client["episodes"] == status["episodes"] > 5  # two seats, 100 steps each, of at most 20 an episode
    assert client["return_mean"] == status["return_mean"]
    assert before.steps < status["curve"][0][0] <= status["steps"]
    names, *rows = (line.split(",") for line in run.metrics.read_text().splitlines())
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    assert max(map(float, filter(None, columns["served/seats"]))) == 2
    assert max(map(float, filter(None, columns["served/latency_p99_ms"]))) > 0
    assert max(map(float, filter(None, columns["info/level_max_mean"]))) == 40
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    counts = np.array(events.Histograms("info/level")[-1].histogram_value.bucket)
    assert counts.max() == 2 * counts[counts > 0].min()
    assert f"Serve:  python main.py --op_mode=serve --load={run.path}" in capsys.readouterr().out
    for mode in ("test", "export"):
        with pytest.raises(ValueError, match="^env: wanted an environment that this program can make, .*--env=ID"):
            launch.prepare(mode, {"load": str(run.path)}, ["main.py"])
        assert launch.prepare(mode, {"load": str(run.path), "env": "CartPole-v1"}, ["main.py"]).config.env.env == "CartPole-v1"


def test_a_refused_address_and_environment_are_one_line(tmp_path: Path) -> None:
    given = {"results_dir": str(tmp_path), "worker_kind": "served", "agent": "ppo", "spaces": SPACES}
    for changed, line in (
        ({"bind": "0.0.0.0:7001"}, "^token_file: wanted a file with a token"),
        ({"bind": "nowhere"}, "^bind: wanted HOST:PORT"),
        ({"bind": "127.0.0.1:0"}, "^bind: wanted a port that clients can know, 1 to 65535, got 127.0.0.1:0"),
        ({"tls_cert": __file__, "tls_key": __file__}, "^tls_cert: wanted a certificate and its key as PEM"),
        ({"env": "Catch-v0"}, "^worker_kind: wanted an environment of Gymnasium"),
        ({"spaces": '{"action": 3}'}, "^spaces: wanted an object with observation and action"),
        ({"spaces": "nowhere.json"}, "^spaces: wanted a JSON object or a file"),
        ({"worker_count": 2}, "^worker_count: wanted 1 with worker_kind served"),
        ({"envs_per_worker": 300}, "^envs_per_worker: wanted at most"),
        ({"agent": "es"}, "^worker_kind: wanted another kind with agent es"),
        ({"eval_period": 10}, "^eval_period: wanted no evaluations"),
    ):
        with pytest.raises(ValueError, match=line):
            launch.prepare("train", {"bind": f"127.0.0.1:{free_port()}", **given, **changed}, ["main.py"])


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"agent": "es"}, "^worker_kind: wanted another kind with agent es"),
        ({"agent": "bc"}, "^worker_kind: wanted another kind with agent bc"),
        ({"core_inputs": True}, "^core_inputs: wanted false with worker_kind served"),
        ({"learner_count": 2}, "^learner_count: wanted 1 with worker_kind served"),
        ({"eval_period": 10}, "^eval_period: wanted no evaluations for served:client"),
        ({"updates_per_step": 0.5}, "^updates_per_step: not a setting of agent ppo"),
    ],
)
def test_a_bad_run_is_refused_before_a_client_comes(
    changed: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: object) -> None:
        raise AssertionError("the run waits for a client")

    monkeypatch.setattr("learner.first_client.wait_for_client", wait)
    given = {"results_dir": str(tmp_path), "worker_kind": "served", "bind": f"127.0.0.1:{free_port()}", "agent": "ppo"}
    with pytest.raises(ValueError, match=line):
        launch.prepare("train", {**given, **changed}, ["main.py"])


SPACES = (
    '{"observation": {"type": "box", "shape": [4], "dtype": "float32", "low": null, "high": null}, '
    '"action": {"type": "discrete", "n": 2}}'
)
