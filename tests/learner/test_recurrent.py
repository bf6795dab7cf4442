"""Whole runs of networks with a core: they recall what a policy without memory cannot, and resume with the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.evaluation.test_mode import load_policy
from learner.metrics.writer import read_metrics
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint
from learner.settings.check import check_settings
from tests.learner.solving import train_until
from tests.learner.test_train import mixture_with, run_training
from tests.support import small_config, small_plan
from wrappers import make_vector_env

QUICKLY: dict[str, Any] = {
    "env": "Recall-v0",
    "core_size": 64,
    "environment_max_steps": 30_000,
    "envs_per_worker": 8,
    "batch_size": 8,
    "optimizer": "adam",
    "lr": 3e-3,
    "entropy_loss_weight": 0.02,
    "log_period": 60.0,
}
CHANCE = -0.5  # one answer in four is right
SOLVED = 0.6


def trained(folder: Path, **settings: Any) -> Checkpoint:
    _, checkpoint = run_training(folder, **{**QUICKLY, **settings})
    assert len(checkpoint.returns) == 100
    return checkpoint


def solves(folder: Path, **settings: Any) -> Checkpoint | None:
    """A checkpoint that recalls, of one seed or another: processes that run in parallel make no two runs the same."""
    for seed in (1, 2, 3):
        checkpoint = train_until(SOLVED, folder / str(seed), **{**QUICKLY, **settings}, seed=seed)
        if np.mean(checkpoint.returns) > SOLVED:
            return checkpoint
    return None


def test_a_core_recalls_the_cue(tmp_path: Path) -> None:
    """In training, and in test mode, whose greedy policy keeps a state of its own."""
    checkpoint = solves(tmp_path, core="lstm")
    assert checkpoint is not None
    config = small_config(**{**QUICKLY, "core": "lstm", "greedy": True})
    policy, env, right = load_policy(make_plan(config), checkpoint, 1), make_vector_env(config.env, 16), []
    observations, first = env.reset(5), np.ones(16, bool)
    for _ in range(60):
        step = env.step(policy.choose(observations, first).actions.numpy())
        observations, first = step.observations, step.reset
        right += step.rewards[step.terminated].tolist()
    assert len(right) == 160
    assert np.mean(right) > 0.25  # without a state of its own it would be at chance


def test_a_policy_without_memory_stays_at_chance(tmp_path: Path) -> None:
    assert abs(np.mean(trained(tmp_path).returns) - CHANCE) < 0.35


@pytest.mark.parametrize(("kind", "core"), [("cpu", "lstm"), ("central", "gru")])
def test_every_kind_of_workers_carries_the_state(kind: str, core: str, tmp_path: Path) -> None:
    assert solves(tmp_path, core=core, worker_kind=kind, worker_count=1)


def test_burn_in_is_played_and_counted_once(tmp_path: Path) -> None:
    """Trajectories of 4 steps behind 6 repeated rows: shorter than what must be recalled."""
    settings = {"core": "lstm", "burn_in": 6, "unroll_length": 4, "environment_max_steps": 2000}
    run, checkpoint = run_training(tmp_path, **{**QUICKLY, **settings, "log_period": 0.05})
    counters = checkpoint.counters
    assert counters.steps == counters.frames == 4 * counters.trajectories
    assert counters.episodes == pytest.approx(counters.steps / 6, rel=0.05)  # 5 steps and the autoreset
    # Each batch is one block, acted by the newest weights. Rows that are repeated were acted by older ones.
    assert np.nanmax(read_metrics(run.metrics)["charts/policy_lag"]) == 0
    contract = small_plan(**{**QUICKLY, **settings}).contract
    assert (contract.unroll_length, contract.overlap, contract.state_size) == (10, 6, 128)


def test_a_replay_that_compares_trains_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    settings = {
        "core": "gru",
        "burn_in": 2,
        "unroll_length": 5,
        "environment_max_steps": 1000,
        "reproducible": True,
        "replay_parameters": mixture_with("elite"),
    }
    one, other = (run_training(tmp_path / name, **{**QUICKLY, **settings})[1] for name in ("one", "other"))
    weights = [checkpoint.agent["modules"]["network"] for checkpoint in (one, other)]
    assert one.counters == replace(other.counters, seconds=one.counters.seconds)
    assert one.counters.updates >= 40
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_burn_in_without_a_core_is_refused() -> None:
    wanted = r"^burn_in: wanted 0 without a core \(--core=lstm or --core=gru\), got 40$"
    with pytest.raises(ValueError, match=wanted):
        small_config(burn_in=40)
    with pytest.raises(ValueError, match="^core: wanted none, gru or lstm, got 'rnn'$"):
        check_settings({"agent": "vtrace", "core": "rnn"})
