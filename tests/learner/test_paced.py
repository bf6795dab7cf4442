"""Whole runs of an agent that learns from windows: the pace holds, resumes are exact, and settings fit such an agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import AGENTS
from agents.base import Agent, Needs
from agents.engine.stepper import Stepper
from agents.losses import Losses, Term
from agents.networks.actor_critic import ActorCritic
from agents.returns.nstep import DEFAULTS, Transitions, needs_of_windows, transitions
from agents.settings import (
    AgentConfig,
    BatchesAtOnce,
    ClipRewards,
    Gamma,
    HeldLearningRate,
    LearningRate,
    LearningStarts,
    NormaliseRewards,
    OptimizerName,
    RewardClipping,
    RmspropEpsilon,
    UpdatesPerStep,
    WindowRows,
)
from learner import launch
from learner.machine.detect import Machine
from learner.machine.fit import fit_to_machine
from learner.metrics.writer import read_metrics
from learner.settings.schema import agent_settings, default_settings, needs_of
from replay.batch import Batch
from tests.agents.continuous.support import CONTINUOUS
from tests.learner.launching import resume, trained
from tests.learner.test_recorded import make_recording
from tests.learner.test_train import run_training
from tests.support import small_config
from tests.test_matrix import assert_resumes_to_the_bit, newest, settings_of


@dataclass(frozen=True)
class WindowConfig(AgentConfig):
    """The settings of an agent that learns from windows."""

    lr: LearningRate = 3e-4
    lr_end_value: HeldLearningRate = -1.0
    optimizer: OptimizerName = "adam"
    rmsprop_eps: RmspropEpsilon = 0.01
    adam_eps: float = 1e-8
    gamma: Gamma = 0.99
    n_step: WindowRows = 1
    normalise_rewards: NormaliseRewards = False
    clip_rewards: ClipRewards = False
    reward_clipping_method: RewardClipping = "abs_one_sign"
    updates_per_step: UpdatesPerStep = 1.0
    learning_starts: LearningStarts = 10_000
    batches_at_once: BatchesAtOnce = 8


class ValueAgent(Agent):
    """Learns the value of the policy that it begins with, and never changes this policy's head."""

    config_class = WindowConfig
    network_class = ActorCritic
    several_steps = True
    defaults = DEFAULTS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, steps_some=True, **options)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return needs_of_windows(config)

    def update(self, batch: Batch, step: Stepper) -> None:
        for part in transitions(batch, self.config.gamma).split(self.config.batches_at_once):
            step.take_rows(self.losses, part)

    def losses(self, part: Transitions) -> Losses:
        values = self.network(part.observations).values
        targets = part.returns + part.discounts * self.network(part.next_observations).values.detach()
        parameters = [
            weights for name, weights in self.network.named_parameters() if not name.startswith(("policy", "log_std"))
        ]
        loss = (targets - values).square().mean()
        terms = {"value_loss": Term(loss, parameters=parameters)}
        return Losses(terms, {"losses/value": values.detach().mean()}, (targets - values).detach().abs())


@pytest.fixture(autouse=True)
def _value_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGENTS, "values", ValueAgent)


OWN: dict[str, Any] = {"agent": "values", "learning_starts": 100, "batch_size": 16, "unroll_length": 5, "n_step": 3}


@pytest.mark.parametrize("worker_kind", ["serial", "cpu"])
@pytest.mark.parametrize(("updates_per_step", "batches_at_once"), [(0.25, 4), (2.0, 3)])
def test_updates_keep_their_ratio_to_steps(
    worker_kind: str, updates_per_step: float, batches_at_once: int, tmp_path: Path
) -> None:
    pace = {"updates_per_step": updates_per_step, "batches_at_once": batches_at_once}
    settings = {**OWN, **pace, "worker_kind": worker_kind, "worker_count": 1, "replay_fill_fraction": 0.0}
    _, checkpoint = run_training(tmp_path, **settings, environment_max_steps=700)
    counters = checkpoint.counters
    steps = int(checkpoint.agent["numbers"]["optimizer_steps"]["count"])
    assert steps == counters.updates * batches_at_once
    assert steps / (counters.steps - OWN["learning_starts"]) == pytest.approx(updates_per_step, rel=0.05)


@pytest.mark.usefixtures("divided")
def test_columns_and_threads_give_the_same_run(tmp_path: Path) -> None:
    """Two batches at once are the two batches that come one after the other from the same trajectories."""
    settings = {**OWN, "updates_per_step": 1.0, "environment_max_steps": 300, "reproducible": True, "batches_at_once": 5}
    _, one = run_training(tmp_path / "one", **settings, learner_threads=1)
    _, two = run_training(tmp_path / "two", **settings, learner_threads=2)
    for name, weights in one.agent["modules"]["network"].items():
        np.testing.assert_allclose(weights.numpy(), two.agent["modules"]["network"][name].numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("combination", ["vector-box", "image-discrete", "dict-multi-mask"])
def test_it_resumes_to_the_bit(combination: str, tmp_path: Path) -> None:
    replay = [{"type": "standard", "steps": 20, "sample_ratio": 0.6}]
    replay += [{"type": "standard", "capacity": 6, "retention": "reservoir", "sample_ratio": 0.4}]  # type: ignore[dict-item]
    own = {**OWN, "learning_starts": 9, "replay_parameters": json.dumps(replay), "unroll_length": 4, "batches_at_once": 2}
    own |= {"lr_end_value": -1.0, "normalise_observations": combination == "vector-box", "normalise_rewards": True}
    own["calibrate_input"] = not own["normalise_observations"]
    assert_resumes_to_the_bit(tmp_path, **{**settings_of(combination, "none"), **own, "environment_max_steps": 96})
    assert newest(tmp_path / "parts").agent["numbers"].keys() >= {"rewards", "optimizer_steps"}


STANDARD = {"type": "standard", "capacity": 40, "sample_ratio": 1.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replay_parameters": [{"type": "queue", "capacity": 1, "sample_ratio": 1.0}]}, "replay_parameters: .*, got queue"),
        ({"replay_parameters": [{**STANDARD, "type": "elite"}]}, "replay_parameters: wanted standard .*, got elite, "),
        ({"replay_parameters": [{**STANDARD, "type": "attentive"}]}, "replay_parameters: wanted standard .*, got attentive, "),
        (
            {"replay_parameters": [{**STANDARD, "type": "custom", "insert_strategy": "elite_insertion"}]},
            "replay_parameters: wanted standard .*, got elite_insertion, ",
        ),
        ({"core": "lstm", "burn_in": 2}, "burn_in: wanted 0 .*, got 2"),
        ({"updates_per_step": 0.0}, r"updates_per_step: wanted a number in \(0, 1000\], got 0"),
        ({"lr_end_value": -0.5}, "lr_end_value: wanted -1 or .*, got -0.5"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    given = {name: json.dumps(value) if isinstance(value, list) else value for name, value in given.items()}
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        small_config(**OWN, **given)
    assert "\n" not in str(refused.value)


def test_settings_fit_an_agent_with_a_pace() -> None:
    machine = Machine(cores=2, memory_bytes=8 * 10**9, gpu=None)
    settled, reasons = fit_to_machine({**default_settings("values"), "agent": "values", "env": "Reach-v0"}, machine)
    assert (settled["batch_size"], settled["unroll_length"], settled["replay_fill_fraction"]) == (256, 8, 0)
    assert (settled["worker_count"], settled["envs_per_worker"], settled["prepared_batches"]) == (1, 4, 0)
    assert any(reason.startswith("envs_per_worker=4 (few, since the learner sets the pace") for reason in reasons)
    (replay,) = small_config(agent="values", unroll_length=8).replays
    assert replay.capacity == 125_000


def test_metrics_count_draws_and_steps(tmp_path: Path) -> None:
    found, checkpoint = run_training(tmp_path, **OWN, log_period=1e-3, environment_max_steps=600)
    columns = read_metrics(found.metrics)
    assert np.nanmax(columns["updates/optimizer_steps"]) == 8 * checkpoint.counters.updates
    assert np.nanmax(columns["replay/standard/draws"]) > 1
    assert np.nanmax(columns["replay/standard/policy_lag"]) > 0


PACED = [name for name in AGENTS if "learning_starts" in agent_settings(name)]


@pytest.mark.parametrize("agent", PACED)
def test_a_first_try_that_is_short_begins_to_learn_sooner(agent: str, tmp_path: Path) -> None:
    env = "Reach-v0" if agent in CONTINUOUS else "Catch-v0"
    given = {"agent": agent, "env": env, "network": "mlp", "environment_max_steps": 900, "updates_per_step": 0.1}
    if needs_of({**default_settings(agent), "agent": agent}).recorded:
        given["recording"] = str(make_recording(tmp_path, env))
    usual = launch.prepare("train", {**given, "environment_max_steps": 50_000}, [])
    assert usual.settings["learning_starts"] == default_settings(agent)["learning_starts"]
    for learners in (1, 2):
        job = launch.prepare("train", {**given, "learner_count": learners}, [])
        assert job.settings["learning_starts"] == job.config.needs.learning_starts == 90 // learners
        assert any(line.startswith("learning_starts=") for line in job.notes)
    with pytest.raises(ValueError, match=r"^environment_max_steps: "):
        launch.prepare("train", {**given, "learning_starts": 1000}, [])


def test_the_start_of_a_preset_is_not_one_that_the_user_asked_for() -> None:
    job = launch.prepare("train", {"preset": "dqn_cartpole", "environment_max_steps": 900}, [])
    assert (job.settings["learning_starts"], job.settings["lr"]) == (90, 0.002)


def test_a_longer_run_keeps_the_start_of_a_short_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, agent="dqn", environment_max_steps=200)
    again, _ = resume(run, capsys, environment_max_steps=1200)
    assert again.path == run.path
    assert newest(tmp_path).settings["learning_starts"] == 20
