"""Whole runs of SAC, TD3 and DDPG: they learn, keep their pace, resume to the bit, are tested and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.writer import read_metrics
from tests.agents.continuous.support import CONTINUOUS
from tests.learner.launching import command
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing
from tests.learner.solving import solves
from tests.learner.test_action_spaces import SOLVED
from tests.learner.test_train import run_training
from tests.support import same
from tests.test_matrix import assert_resumes_to_the_bit, directory, newest, run, settings_of

EACH = pytest.mark.parametrize("agent", CONTINUOUS)
REACH: dict[str, Any] = {
    "env": "Reach-v0",
    "environment_max_steps": 3000,
    "learning_starts": 500,
    "unroll_length": 8,
    "batch_size": 64,
    "hidden_sizes": "64,64",
    "lr": 3e-3,
    "replay_fill_fraction": 0.0,
}
SMALL = {
    "learning_starts": 16,
    "batch_size": 8,
    "batches_at_once": 2,
    "unroll_length": 4,
    "environment_max_steps": 64,
    "lr_end_value": -1.0,
    "replay_fill_fraction": 0.0,
    "replay_parameters": '[{"type": "standard", "steps": 40, "sample_ratio": 1.0}]',
}


PRIORITISED = json.dumps(
    [
        {"type": "prioritised", "steps": 40, "sample_ratio": 0.5},
        {"type": "standard", "capacity": 9, "retention": "reservoir", "sample_ratio": 0.5},
    ]
)


def small(agent: str, combination: str, **own: Any) -> dict[str, Any]:
    return {**settings_of(combination, "none"), **SMALL, "agent": agent, **own}


@EACH
def test_it_learns_to_reach(agent: str, tmp_path: Path) -> None:
    assert solves(SOLVED["Reach-v0"], tmp_path, **REACH, agent=agent)


@pytest.mark.parametrize(
    ("agent", "combination", "own"),
    [
        ("sac", "vector-box", {"normalise_observations": True, "calibrate_input": False, "critic_layer_norm": True}),
        ("sac", "dict-discrete-mask", {"n_step": 3}),
        ("sac", "image-box", {"critic_dropout": 0.1}),
        ("tqc", "dict-box", {"critics": 3, "critic_subset": 2, "weight_decay": 0.1, "network": "simba"}),
        ("crossq", "dict-box", {"renorm_warm_up": 2, "delay": 2}),
        ("crossq", "dict-discrete-mask", {"actor_value": "mean"}),
        ("td3", "vector-box", {"exploration_noise_kind": "ou", "batches_at_once": 3}),
        ("td3", "dict-box", {"n_step": 2, "normalise_rewards": True}),
        ("ddpg", "image-box", {}),
    ],
)
def test_it_resumes_to_the_bit_plays_and_is_exported(agent: str, combination: str, own: dict[str, Any], tmp_path: Path) -> None:
    assert_resumes_to_the_bit(tmp_path, **small(agent, combination, **own))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert same(newest(whole).generators, newest(parts).generators)
    assert run("test", parts, load="latest", test_episode_count=2, greedy=True) == 0
    if own.keys() & {"critic_dropout", "normalise_rewards"}:
        return  # an actor as in another case; an exported file has no critic
    assert run("export", parts, load="latest") == 0
    (described,) = (json.loads(path.read_text()) for path in directory(parts).path.glob("exported_*/policy.json"))
    assert set(described["outputs"]) == {
        "action",
        *(["logits" if "discrete" in combination else "policy"] if agent in ("sac", "tqc", "crossq") else []),
    }
    assert max(described["largest_difference"].values()) < 1e-3


@pytest.mark.parametrize(
    ("agent", "own"),
    [
        ("sac", {"learn_temperature": False, "critic_dropout": 0.1}),
        ("crossq", {"renorm_warm_up": 9, "delay": 3}),
        ("td3", {"exploration_noise_kind": "ou", "n_step": 3, "batches_at_once": 3, "replay_parameters": PRIORITISED}),
        ("ddpg", {"normalise_rewards": True}),
    ],
)
def test_a_killed_run_ends_as_if_nothing_had_happened(agent: str, own: dict[str, Any], tmp_path: Path) -> None:
    kept = {"environment_max_steps": 200, "checkpoint_period": 10, "return_window": 2}
    settings = small(agent, "vector-box", **kept, **own)
    assert_a_kill_changes_nothing(tmp_path, **settings)


def test_worker_processes_keep_the_pace(tmp_path: Path) -> None:
    settings = {**REACH, "environment_max_steps": 1500, "worker_kind": "cpu", "worker_count": 1, "log_period": 0.2}
    found, checkpoint = run_training(tmp_path, **settings, agent="td3", updates_per_step=0.5, prepared_batches=2)
    columns = read_metrics(found.metrics)
    steps = checkpoint.agent["numbers"]["optimizer_steps"]["count"]
    assert float(steps) / (checkpoint.counters.steps - 500) == pytest.approx(0.5, rel=0.05)
    assert np.nanmax(columns["time/worker_wait"]) > 0


def test_another_agent_s_checkpoint_is_one_line(tmp_path: Path) -> None:
    assert run("train", tmp_path, **small("td3", "vector-box")) == 0
    for agent in ("sac", "ddpg"):
        with pytest.raises(ValueError, match=f"^agent: wanted td3 as in the checkpoint, got {agent}$") as refused:
            command(tmp_path, "train_w_load", load="latest", agent=agent)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compress_replay": True}, "compress_replay: wanted false with agent sac for observations without images"),
        ({"n_step": 9}, r"n_step: wanted at most the 8 rows of a trajectory \(--unroll_length\), got 9"),
        ({"replay_fill_fraction": 0.5}, "replay_fill_fraction: wanted 0 with agent sac"),
    ],
)
def test_what_cannot_pay_is_refused_in_one_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        command(tmp_path, "train", **{**REACH, "agent": "sac", **given})
    assert "\n" not in str(refused.value)


def test_a_resumed_run_says_that_its_budget_ends_before_the_replays_are_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", tmp_path, **small("sac", "vector-box", reproducible=False)) == 0
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=70) == 0
    assert "Filling the replays takes 20 steps, but --environment_max_steps leaves" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"exploration_noise_kind": "ou", "batches_at_once": 3}),
        (
            {"exploration_noise_kind": "ou", "replay_parameters": PRIORITISED},
            {"exploration_noise_kind": "gaussian", "batches_at_once": 1},
        ),
    ],
)
def test_a_reproducible_run_goes_on_with_other_settings(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", tmp_path, **small("td3", "vector-box", **before)) == 0
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=96, **after) == 0
    said = capsys.readouterr()
    assert "start empty" not in said.out + said.err
    assert newest(tmp_path).counters.steps >= 96
