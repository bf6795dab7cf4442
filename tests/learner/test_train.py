"""Whole runs in seconds: learning is real, a run can be repeated bit for bit, a resumed run goes on where the first ended."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

from agents.metrics import UpdateReport
from agents.vtrace.agent import VTraceAgent
from learner.early_processes import EarlyProcesses
from learner.evaluation.evaluator import EvaluationResult
from learner.metrics.writer import read_metrics
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, Counters, load_checkpoint
from learner.runs.directory import RunDirectory
from learner.settings.config import Config
from learner.train import train
from replay.batch import Batch
from tests.support import children_named, small_config
from workers import Block, WorkerError
from workers.serial import SerialWorkers
from wrappers import Step, toy
from wrappers.toys.catch import Catch

QUEUE_AND_STANDARD = (
    '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 40, "sample_ratio": 0.5}]'
)


def run_training(
    folder: Path, resumed: Checkpoint | None = None, run: RunDirectory | None = None, **settings: Any
) -> tuple[RunDirectory, Checkpoint]:
    config = small_config(**settings)
    run = run or RunDirectory.create(folder, config.env.env)
    assert train(make_plan(config), run, resumed) == 0
    return run, load_checkpoint(run.checkpoint_paths()[-1])


KINDS = {
    "elite": {"type": "elite", "lambda_batch_multiplier": 3, "annealing_factor": 1.0},
    "elite on the policy": {"type": "elite", "dist_function": "kl_policy", "elite_sampling_strategy": "strategy1"},
    "elite that inserts": {"type": "elite", "insert_strategy": "elite_insertion", "elite_batch_size": 4},
    "attentive": {"type": "attentive", "dist_function": "cos_dist"},
    "custom": {"type": "custom", "insert_strategy": "elite_insertion", "elite_batch_size": 4},
    "standard": {"type": "standard"},
    "reservoir": {"type": "standard", "retention": "reservoir"},
    "circular": {"type": "circular", "slots": 3, "uses": 2},
}


def mixture_with(kind: str) -> str:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    size = {} if kind == "circular" else {"capacity": 40}
    return json.dumps([queue, {**size, "sample_ratio": 0.5, **KINDS[kind]}])


REPEATED = ("elite on the policy", "elite that inserts")
"""Kinds that no run of tests/learner/runs/test_resuming.py repeats."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_replay_kind_trains_and_repeats_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """120 updates, and a few until the replay is filled: half of a batch of four trajectories of five steps is fresh."""
    settings = {
        "reproducible": True,
        "replay_parameters": mixture_with(kind),
        "calibrate_input": False,
        "unroll_length": 5,
        "environment_max_steps": 1400,
    }
    run, one = run_training(tmp_path / "one", **settings)
    assert one.counters.updates >= 120
    if kind in REPEATED:
        _, other = run_training(tmp_path / "other", **settings)
        assert one.counters == replace(other.counters, seconds=one.counters.seconds)
        assert one.returns == other.returns
        weights = [checkpoint.agent["modules"]["network"] for checkpoint in (one, other)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    columns = read_metrics(run.metrics)
    name = str(KINDS[kind]["type"]).replace("custom", "standard")
    assert np.nanmax(columns[f"replay/{name}/age"]) > 0
    assert np.nanmax(columns[f"replay/{name}/policy_lag"]) > np.nanmax(columns["charts/policy_lag"]) >= 0
    assert np.nanmax(columns[f"replay/{name}/effective_sample_size"]) <= 1 + 1e-6
    if name not in ("standard", "circular"):
        assert np.nanmax(columns[f"replay/{name}/distance"]) > 0


@pytest.mark.parametrize("kind", ["reservoir", "attentive"])
def test_frames_on_the_learner_s_device_change_nothing(tmp_path: Path, kind: str) -> None:
    """As from host memory, bit for bit; the learner's device is the CPU here."""
    settings: dict[str, Any] = {
        "reproducible": True,
        "frames_stacked": 3,
        "unroll_length": 5,
        "environment_max_steps": 1000,
    }
    mixture = json.loads(mixture_with(kind))
    runs = []
    for device in ("cpu", "cuda"):
        mixture[1]["device"] = device
        runs.append(run_training(tmp_path / device, replay_parameters=json.dumps(mixture), **settings)[1])
    assert runs[0].counters.updates >= 80
    assert runs[0].returns == runs[1].returns
    weights = [checkpoint.agent["modules"]["network"] for checkpoint in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_another_seed_ends_with_other_bits(tmp_path: Path) -> None:
    settings = {"reproducible": True, "replay_parameters": QUEUE_AND_STANDARD, "environment_max_steps": 1000}
    weights = [run_training(tmp_path / f"{seed}", seed=seed, **settings)[1].agent["modules"]["network"] for seed in (9, 10)]
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("prepared_batches", [0, 3])
def test_the_counters_are_those_of_the_batches_drawn_from(tmp_path: Path, prepared_batches: int) -> None:
    """A queue gives each trajectory once: all that were counted were trained on, but for those still waiting in it."""
    _, checkpoint = run_training(tmp_path, prepared_batches=prepared_batches, environment_max_steps=3000, batch_size=3)
    counters = checkpoint.counters
    waiting = counters.trajectories - 3 * counters.updates
    assert 0 <= waiting <= 3  # a queue of this capacity holds one batch
    assert counters.steps == counters.frames == 10 * counters.trajectories
    assert counters.episodes == pytest.approx(counters.steps / 9, rel=0.1)


def test_no_thread_is_left_by_a_run_nor_by_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay encodes while it inserts and samples: all of it beside the updates."""
    settings = {"prepared_batches": 3, "replay_parameters": mixture_with("elite that inserts")}
    run, checkpoint = run_training(tmp_path / "whole", **settings)
    assert checkpoint.counters.steps >= 2000
    assert np.nanmax(read_metrics(run.metrics)["feeder/depth"]) >= 1
    assert [thread for thread in threading.enumerate() if thread.name == "feeder"] == []
    poll = SerialWorkers.poll

    def fail_after_a_while(workers: SerialWorkers, timeout: float) -> list[Block]:
        if workers.weights.published_version >= 20:
            raise WorkerError("worker 0 failed")
        return poll(workers, timeout)

    monkeypatch.setattr(SerialWorkers, "poll", fail_after_a_while)
    with pytest.raises(WorkerError, match="worker 0 failed"):
        run_training(tmp_path / "failing", **settings)
    assert [thread for thread in threading.enumerate() if thread.name == "feeder"] == []
    (saved,) = (tmp_path / "failing").glob("*_*/checkpoints/*.pt")
    assert load_checkpoint(saved).counters.updates >= 20


def test_no_worker_is_left_where_the_rest_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get ready beside it."""
    begun: list[int] = []

    def fail(early_processes: EarlyProcesses) -> None:
        end = time.monotonic() + 60
        while not begun:
            assert time.monotonic() < end, "no worker is there"
            begun.extend(children_named("worker-0"))
        raise WorkerError("random play failed")

    monkeypatch.setattr(EarlyProcesses, "random_observations", fail)
    with pytest.raises(WorkerError, match="random play failed"):
        run_training(tmp_path, worker_kind="cpu", worker_count=1, calibrate_input=True)
    assert len(begun) == 1
    assert children_named("worker-0") == []
    assert [thread for thread in threading.enumerate() if thread.name.startswith("supervisor")] == []


def test_schedules_begin_at_their_first_value_and_every_update_has_a_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, seen = VTraceAgent.learn, []

    def record(agent: VTraceAgent, batch: Batch, progress: float) -> UpdateReport:
        seen.append(progress)
        return learn(agent, batch, progress)

    monkeypatch.setattr(VTraceAgent, "learn", record)
    run_training(tmp_path, environment_max_steps=300)
    assert seen[0] == 0
    assert 0.8 < seen[-1] < 1
    assert (np.diff(seen) > 0).all()


@pytest.mark.pictures
def test_a_resumed_run_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    run, first = run_training(tmp_path, environment_max_steps=4000, lr=1e-3, lr_end_value=1e-3, log_period=0.05)
    before, curve = read_metrics(run.metrics), run.curve.read_bytes()
    _, second = run_training(tmp_path, first, run, environment_max_steps=8000, lr=1e-3, log_period=0.05)
    after = read_metrics(run.metrics)
    assert second.counters.steps >= 8000 > first.counters.steps
    assert second.counters.updates > first.counters.updates
    assert second.counters.seconds > first.counters.seconds
    assert (np.diff(after["steps"]) >= 0).all()
    assert (np.diff(after["updates"]) >= 0).all()
    np.testing.assert_array_equal(after["steps"][: len(before["steps"])], before["steps"])
    # The learning rate is that of the frames before the update in the new budget: half of it is half the rate.
    resumed = slice(len(before["steps"]), None)
    used = after["frames"][resumed] / 8000
    one_update = first.counters.frames / first.counters.updates / 8000
    assert ((after["charts/learning_rate"][resumed] / 1e-3 - (1 - used) > 0) & (used <= 1 + one_update)).all()
    np.testing.assert_allclose(after["charts/learning_rate"][resumed], 1e-3 * (1 - used), rtol=0, atol=3e-3 * one_update)
    summary = json.loads(run.summary.read_text())
    assert (summary["steps"], summary["updates"], summary["episodes"]) == (
        *(second.counters.steps, second.counters.updates),
        second.counters.episodes,
    )
    assert summary["mean_return"] == np.mean(second.returns)
    assert (summary["finished"], summary["episodes_in_mean"]) == (True, 100)
    assert run.curve.read_bytes() != curve


@pytest.mark.pictures
def test_a_run_without_a_whole_episode_tells_no_return_and_can_go_on(tmp_path: Path) -> None:
    """Four environments make three of the nine steps of an episode."""
    run, first = run_training(tmp_path, unroll_length=3, environment_max_steps=12, log_period=0.001)
    assert (first.counters.steps, first.counters.episodes, first.returns) == (12, 0, [])
    assert "nan" not in run.metrics.read_text().lower()
    columns = read_metrics(run.metrics)
    assert [name for name in columns if "episodic" in name] == []
    shown = EventAccumulator(str(run.tensorboard))
    shown.Reload()
    assert {name.partition("/")[0] for name in shown.Tags()["scalars"]} >= {"charts", "losses"}
    assert all(np.isfinite(event.value) for name in shown.Tags()["scalars"] for event in shown.Scalars(name))
    assert json.loads(run.summary.read_text(), parse_constant=pytest.fail)["mean_return"] is None
    assert not run.curve.exists()
    _, second = run_training(tmp_path, first, run, unroll_length=3, environment_max_steps=600, log_period=0.001)
    after = read_metrics(run.metrics)
    assert len(second.returns) == second.counters.episodes > 0
    assert np.isnan(after["charts/episodic_return_mean"][: len(columns["steps"])]).all()
    assert np.isfinite(after["charts/episodic_return_mean"][-1])
    assert run.curve.exists()


class TripleRewards(Catch):
    """A ball is worth three points."""

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        return step._replace(rewards=3 * step.rewards, episode_return=3 * step.episode_return)


def test_reported_returns_are_raw_and_of_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rewards are clipped for learning."""
    monkeypatch.setitem(toy.TOYS, Catch.env_id, TripleRewards)
    _, checkpoint = run_training(tmp_path, environment_max_steps=2000, clip_rewards=True)
    assert set(checkpoint.returns) == {-3.0, 3.0}
    assert checkpoint.counters.episodes == pytest.approx(checkpoint.counters.steps / 10, rel=0.1)


@pytest.mark.pictures
def test_a_run_leaves_what_a_reader_needs(tmp_path: Path) -> None:
    run, checkpoint = run_training(tmp_path, environment_max_steps=2000)
    assert run.curve.stat().st_size > 1000
    assert run.summary.is_file()
    assert list(run.tensorboard.glob("events.*"))
    assert checkpoint.protocol["full_games"] is True
    columns = read_metrics(run.metrics)
    for name in (
        "charts/episodic_return",
        "charts/SPS",
        "losses/entropy",
        "charts/policy_lag",
        "vtrace/rho_clip_fraction",
    ):
        assert np.isfinite(columns[name]).any(), name


class ImmediateEvaluator:
    """Finds at the next update that every policy returns its own number."""

    def __init__(self, config: Config, network: torch.nn.Module, animation: Path) -> None:
        self.animation = animation
        self.asked: Counters | None = None
        self.alive = self.ready = True

    def start(self) -> None:
        pass

    def ask(self, network: torch.nn.Module, counters: Counters) -> None:
        self.asked = replace(counters)

    def take(self) -> EvaluationResult | None:
        asked, self.asked = self.asked, None
        if asked is None:
            return None
        Image.new("L", (2, 2), asked.updates).save(self.animation)
        return EvaluationResult(asked.updates, asked.steps, (float(-asked.updates), 0.0), self.animation)

    def stop(self) -> None:
        pass


def test_what_evaluations_find_stands_beside_the_training_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.evaluation.schedule.Evaluator", ImmediateEvaluator)
    run, last = run_training(tmp_path, eval_period=10, environment_max_steps=2000, log_period=0.001, checkpoint_period=1000)
    columns = read_metrics(run.metrics)
    found = np.isfinite(columns["eval/update"])
    updates = last.counters.updates
    evaluated = [*range(10, updates, 10), updates]  # the final policy too
    np.testing.assert_array_equal(columns["eval/update"][found], evaluated)
    np.testing.assert_array_equal(columns["eval/episodic_return"], -columns["eval/update"] / 2)
    assert (columns["eval/steps"][found] <= columns["steps"][found]).all()
    assert np.isfinite(columns["charts/SPS"][-1]), "programs that show the newest row read the speed there"
    assert load_checkpoint(run.best).counters.updates == 10, "the later ones are worse"
    told = [json.loads(line) for line in run.evaluations.read_text().splitlines()]
    assert [line["update"] for line in told] == columns["eval/update"][found].tolist()
    assert told[0]["protocol"] == load_checkpoint(run.best).protocol
    shown = EventAccumulator(str(run.tensorboard), size_guidance={IMAGES: 0})
    shown.Reload()
    images = shown.Images("eval/episode")
    assert [image.step for image in images] == [line["steps"] for line in told]
    assert images[-1].encoded_image_string == run.animation.read_bytes()
    assert (images[-1].width, images[-1].height) == (2, 2)
