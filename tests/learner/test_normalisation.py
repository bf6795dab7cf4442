"""Runs with normalised inputs and rewards, and with several leaves, learn, resume to the bit, and export what they learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.networks.base import make_network
from learner.export.export import PROGRAM, ExportedPolicy, export_policy, read_program
from learner.metrics.writer import read_metrics
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, load_checkpoint
from learner.runs.directory import RunDirectory
from tests import leafy
from tests.learner.launching import MIXTURE, command, resume, trained
from tests.support import same, small_config
from workers import random_observations
from wrappers import ENVIRONMENTS
from wrappers.spaces import ACTION_MASK

VECTOR: dict[str, Any] = {
    "env": leafy.VECTOR,
    "network": "auto",
    "hidden_sizes": "32",
    "normalise_observations": True,
    "normalise_rewards": True,
    "optimizer": "adam",
    "lr": 1e-2,
    "gamma": 0.5,
    "unroll_length": 5,
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "leafy", leafy)


def newest(run: RunDirectory) -> Checkpoint:
    return load_checkpoint(run.checkpoint_paths()[-1])


@pytest.mark.random_play
def test_a_network_of_normalised_vectors_learns_and_is_exported(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path, **VECTOR, environment_max_steps=8000)
    checkpoint = newest(run)
    assert np.mean(checkpoint.returns[-50:]) > 18, "the best return is 20, that of random play -7"
    numbers = checkpoint.agent["numbers"]
    fresh_steps = 5 * 4 * checkpoint.counters.updates
    assert float(numbers["observations"]["weight"]) == pytest.approx(800 + fresh_steps, abs=1)  # 800 of random play
    assert float(numbers["observations"]["mean"][0]) == pytest.approx(1000.5, abs=0.05)
    assert float(numbers["rewards"]["weight"]) == pytest.approx(fresh_steps * 4 / 5, rel=0.02)  # one row of five is a reset
    weights = checkpoint.agent["modules"]["network"]
    np.testing.assert_allclose(weights["input_mean"][0], numbers["observations"]["mean"], rtol=1e-6)
    config = small_config(**{**VECTOR, "clip_rewards": False})
    assert export_policy(make_plan(config), checkpoint, run.checkpoint_paths()[-1], tmp_path) == 0
    network = make_network(make_plan(config).network)
    network.load_state_dict(weights)
    observations = random_observations(config.env, 9)
    wanted = ExportedPolicy(network.only_act())(observations)
    got = read_program(tmp_path / f"exported_{checkpoint.counters.updates}" / PROGRAM)(observations)
    torch.testing.assert_close(tuple(got), tuple(wanted), rtol=1e-4, atol=1e-4)
    assert float(observations[:, 0, 0].mean()) == pytest.approx(1000.5, abs=0.1), "the exported policy takes raw observations"


def test_moments_and_returns_resume_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**VECTOR, "unroll_length": 3, "reproducible": True, "replay_parameters": MIXTURE, "lr_end_value": 1e-2}
    whole = newest(trained(tmp_path / "whole", **settings, environment_max_steps=600))
    run = trained(tmp_path / "halves", **settings, environment_max_steps=312)
    resumed, _ = resume(run, capsys, environment_max_steps=600)
    halves = newest(resumed)
    assert whole.counters.updates == halves.counters.updates > 20
    assert same(whole.agent["modules"], halves.agent["modules"])
    assert same(whole.agent["numbers"], halves.agent["numbers"])


def test_several_leaves_pass_through_replays_and_are_learned_under_their_mask(tmp_path: Path) -> None:
    """The environment fails at an illegal action, so each worker, and random play, kept to the mask."""
    settings = {**VECTOR, "env": leafy.LEAFY, "normalise_rewards": False, "frames_stacked": 2, "replay_parameters": MIXTURE}
    run = trained(tmp_path, **settings, environment_max_steps=6000)
    checkpoint = newest(run)
    assert np.mean(checkpoint.returns[-50:]) > 18
    assert checkpoint.agent["modules"]["network"]["inputs.1.mean"].shape == (2, 2)
    assert checkpoint.spec["leaves"][0]["name"] == ACTION_MASK
    assert np.nanmax(read_metrics(run.metrics)["updates/skipped"]) == 0


def test_a_value_of_its_own_and_chosen_sizes_train(tmp_path: Path) -> None:
    settings = {**VECTOR, "separate_value": True, "activation": "tanh", "environment_max_steps": 400}
    names = newest(trained(tmp_path, **settings)).agent["modules"]["network"]
    assert names["value_torso.1.weight"].shape == (32, 2)


def test_what_was_chosen_is_told() -> None:
    job = command(Path("unused"), "train", **VECTOR)
    assert "network=mlp (the observations are vectors)" in job.notes
    assert "clip_rewards=False (normalise_rewards scales the rewards instead)" in job.notes
    assert job.config.network == "mlp"
    assert job.config.settings["network"] == "mlp"
    assert not job.config.agent_settings.clip_rewards
    job = command(Path("unused"), "train", **{**VECTOR, "normalise_rewards": False, "popart": True})
    assert "clip_rewards=False (popart scales the values instead)" in job.notes
    assert command(Path("unused"), "train", **{**VECTOR, "env": leafy.LEAFY}).config.network == "mlp"


STANDARD = '[{"type": "standard", "capacity": 40, "sample_ratio": 1.0}]'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"clip_rewards": True},
            "normalise_rewards: wanted either it or clip_rewards, got both; drop one with --noclip_rewards",
        ),
        ({"replay_parameters": STANDARD}, "normalise_observations: wanted a queue or a circular replay, .*, got standard"),
        ({"env": "Catch-v0", "hidden_sizes": "256,256"}, r"normalise_observations: wanted vectors, got images \[1, 10, 5\]"),
        ({"network": "nature", "hidden_sizes": "256,256"}, r"network nature: wanted .*, got \[1, 2\]; --network=mlp fits"),
        ({"network": "none.py:Net"}, "network none.py:Net: wanted a file that exists, got "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as refusal:
        command(Path("unused"), "train", **{**VECTOR, **given})
    assert "\n" not in str(refusal.value)
