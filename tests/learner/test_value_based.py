"""Whole runs of DQN and R2D2: they learn, resume to the bit with their priorities, are tested and exported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner import launch
from learner.export.export import DESCRIPTION
from learner.metrics.writer import read_metrics
from learner.runs.checkpoint import load_checkpoint, save_checkpoint
from tests.learner.launching import command
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing
from tests.learner.solving import solves
from tests.learner.test_action_spaces import SOLVED
from tests.learner.test_train import run_training
from tests.test_matrix import assert_resumes_to_the_bit, directory, newest, run, settings_of

# The parts of a run have other budgets, so nothing may depend on its progress.
PRIORITISED = json.dumps([{"type": "prioritised", "steps": 40, "sample_ratio": 1.0, "beta_end": 0.4}])
MIXED = json.dumps(
    [
        {"type": "prioritised", "capacity": 9, "sample_ratio": 0.5, "alpha": 0.9, "beta_end": 0.4},
        {"type": "standard", "capacity": 9, "sample_ratio": 0.5},
    ]
)
HALF_REPLAYED = json.dumps(
    [{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "standard", "capacity": 50, "sample_ratio": 0.5}]
)
DQN: dict[str, Any] = {"agent": "dqn", "learning_starts": 9, "updates_per_step": 1.0, "batches_at_once": 2, "lr": 6e-4}
RAINBOW = {"double": True, "dueling": True, "noisy": True, "n_step": 3, "return_distribution": "c51", "atoms": 5}
QUANTILES = {"return_distribution": "qr", "quantiles": 4}
IMPLICIT = {
    "return_distribution": "iqn",
    "fractions": 4,
    "target_fractions": 3,
    "acting_fractions": 5,
    "head_units": 8,
    "munchausen": True,
    "n_step": 3,
    "dueling": True,
    "noisy": True,
}
WIDE = {"network": "impala_deep", "width": 2, "adaptive_pool": 3, "spectral_norm": True, "layer_norm": True}
R2D2: dict[str, Any] = {
    "agent": "r2d2",
    "learning_starts": 9,
    "updates_per_step": 0.125,
    "burn_in": 2,
    "n_step": 2,
    "lr": 6e-4,
    "replay_parameters": PRIORITISED,
}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "dqn": settings_of("vector-discrete-mask", "none", **DQN, epsilon_zeta=1.5),
    "several choices, ladder, priorities": settings_of(
        "dict-multi-mask",
        "none",
        **DQN,
        exploration="ladder",
        epsilon_zeta=2.0,
        dueling=True,
        n_step=2,
        replay_parameters=MIXED,
    ),
    "rainbow": settings_of("image-discrete-mask", "none", **DQN, **RAINBOW, replay_parameters=PRIORITISED),
    "quantiles": settings_of("vector-discrete", "none", **DQN, **QUANTILES, normalise_observations=True),
    "implicit quantiles": settings_of("vector-discrete-mask", "none", **DQN, **IMPLICIT, replay_parameters=PRIORITISED),
    "wide": settings_of("dict-discrete-mask", "none", **{**DQN, **WIDE, "updates_per_step": 0.25}),
    "bins": settings_of("vector-discrete-mask", "none", **DQN, return_distribution="hl_gauss", atoms=6, munchausen=True),
    "munchausen": settings_of("image-discrete", "none", **DQN, munchausen=True, target_update_rate=0.1, target_update_period=1),
    "r2d2": settings_of("dict-discrete-mask", "lstm", **R2D2, core_inputs=True),
    "r2d2, several choices": settings_of("vector-multi", "gru", **R2D2, value_rescaling=False, compress_replay=True),
}
SQN: dict[str, Any] = {**DQN, "agent": "sqn", "learn_temperature": True}
COMBINATIONS |= {
    "sqn": settings_of("dict-discrete-mask", "none", **SQN, replay_parameters=PRIORITISED, normalise_rewards=True),
    "sqn, several choices": settings_of(
        "image-multi-mask", "none", **SQN, n_step=3, retrace_lambda=0.9, separate_value=False, replay_parameters=MIXED
    ),
}
EXPORTED = ("sqn", "several choices, ladder, priorities", "rainbow", "implicit quantiles", "bins", "r2d2")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_it_resumes_to_the_bit_plays_and_is_exported(name: str, tmp_path: Path) -> None:
    settings = {**COMBINATIONS[name], "environment_max_steps": 96, "lr_end_value": -1.0}
    averaged = settings["agent"] == "sqn"  # its target moves after each step
    settings |= {} if averaged else {"epsilon_fraction": 1e-9}
    settings["calibrate_input"] = settings["calibrate_input"] and not settings.get("normalise_observations")
    assert_resumes_to_the_bit(tmp_path, **settings)
    parts = tmp_path / "parts"
    state = newest(parts).agent
    assert state["modules"].keys() == {"network", "target"}
    assert float(state["numbers"]["target"]["age"]) > 0 or averaged or settings.get("target_update_period") == 1
    assert run("test", parts, load="latest", test_episode_count=2) == 0
    if name not in EXPORTED:
        return  # its network is of a class that another case exports
    assert run("export", parts, load="latest") == 0
    (path,) = directory(parts).path.glob(f"exported_*/{DESCRIPTION}")
    described = json.loads(path.read_text())
    assert max(described["largest_difference"].values()) < 1e-3
    assert described["outputs"].keys() == {"logits" if name == "sqn" else "q", "action"}


MOVING: dict[str, dict[str, Any]] = {
    "dqn": {**DQN, "learning_starts": 30, "n_step": 3, "batch_size": 4, "epsilon_zeta": 2.0},
    "r2d2": {
        **R2D2,
        "learning_starts": 30,
        "updates_per_step": 0.1,
        "core_size": 8,
        "batch_size": 4,
        "exploration": "schedule",
    },
}


@pytest.mark.parametrize("agent", MOVING)
def test_a_killed_run_ends_as_if_nothing_had_happened_while_its_schedules_move(agent: str, tmp_path: Path) -> None:
    moving = {"epsilon_fraction": 1.0, "lr_end_value": 0.0, "target_update_period": 7}
    replay = json.dumps([{"type": "prioritised", "steps": 300, "sample_ratio": 1.0, "beta": 0.4, "beta_end": 1.0}])
    own = {"replay_parameters": replay, "reproducible": True, "checkpoint_period": 10, "return_window": 2, "log_period": 1e5}
    settings = {**MOVING[agent], **moving, **own, "environment_max_steps": 300}
    straight = assert_a_kill_changes_nothing(tmp_path, **settings)
    columns = read_metrics(straight.metrics)
    for name in ("losses/epsilon", "replay/prioritised/beta"):
        assert len(set(columns[name])) > 1, name


TOY: dict[str, Any] = {
    "agent": "dqn",
    "hidden_sizes": "64,64",
    "lr": 1e-3,
    "lr_end_value": -1.0,
    "batch_size": 32,
    "learning_starts": 500,
    "updates_per_step": 0.5,
    "batches_at_once": 16,
    "epsilon_fraction": 0.5,
    "epsilon_end": 0.02,
    "target_update_period": 100,
    "replay_parameters": '[{"type": "standard", "steps": 20000, "sample_ratio": 1.0}]',
    "log_period": 60.0,
}


def test_dqn_learns_masked_choices_from_a_prioritised_replay(tmp_path: Path) -> None:
    """tests/agents/dqn/test_agent.py has several choices."""
    own = {"environment_max_steps": 12_000, "double": True, "dueling": True, "hidden_sizes": "64", "lr": 3e-3}
    own |= {"updates_per_step": 0.25, "target_update_period": 50, "epsilon_fraction": 0.2}
    settings = {**TOY, "env": "Masked-v0", **own, "replay_parameters": PRIORITISED.replace("40", "20000")}
    assert solves(SOLVED["Masked-v0"], tmp_path, **settings)


ON_POLICY: dict[str, Any] = {
    "hidden_sizes": "64,64",
    "lr": 2e-3,
    "unroll_length": 16,
    "epsilon_fraction": 0.5,
    "log_period": 60.0,
}
LEARNED: dict[str, dict[str, Any]] = {
    # With Retrace: also from rows that older policies have played.
    "sqn": {
        "agent": "sqn",
        "hidden_sizes": "64",
        "lr": 2e-3,
        "target_update_rate": 0.02,
        "log_period": 60.0,
        "n_step": 3,
        "retrace_lambda": 1.0,
        "updates_per_step": 0.25,
    },
    "pqn": {"agent": "pqn", "retrace_lambda": 1.0, "minibatches": 4, **ON_POLICY, "replay_parameters": HALF_REPLAYED},
}


@pytest.mark.parametrize("name", LEARNED)
def test_other_agents_of_values_learn_masked_choices(name: str, tmp_path: Path) -> None:
    assert solves(SOLVED["Masked-v0"], tmp_path, **{"env": "Masked-v0", "environment_max_steps": 12_000, **LEARNED[name]})


@pytest.mark.parametrize(
    ("agent", "combination"),
    [*((agent, "vector-box") for agent in ("crossq", "sac", "tqc", "td3")), ("sac", "vector-discrete-mask")],
)
def test_agents_with_critics_give_priorities_and_resume_with_them(agent: str, combination: str, tmp_path: Path) -> None:
    own = {"agent": agent, "learning_starts": 9, "updates_per_step": 1.0, "batches_at_once": 2, "n_step": 2, "lr": 6e-4}
    own |= {"replay_parameters": PRIORITISED, "environment_max_steps": 96, "lr_end_value": -1.0, "calibrate_input": False}
    own |= {"retrace_lambda": 0.9} if combination == "vector-discrete-mask" else {}
    assert_resumes_to_the_bit(tmp_path, **settings_of(combination, "none", **own))
    (replay,) = directory(tmp_path / "parts").replay_paths()
    leaves = torch.load(replay, weights_only=True)["replay"]["mixture"]["replays"][0]["index"]["leaves"]
    assert len(set(leaves[leaves > 0].tolist())) > 5  # not the priority of new rows alone


@pytest.mark.parametrize("worker_kind", ["cpu", "central"])
def test_processes_explore_by_a_ladder_and_priorities_reach_the_replay(worker_kind: str, tmp_path: Path) -> None:
    settings = {**TOY, "exploration": "ladder", "replay_parameters": PRIORITISED, "worker_kind": worker_kind, "worker_count": 1}
    run_directory, _ = run_training(tmp_path, **{**settings, "environment_max_steps": 2_000, "log_period": 1e-3})
    columns = read_metrics(run_directory.metrics)
    assert np.nanmax(columns["replay/prioritised/largest_priority"]) != 1.0
    assert np.nanmin(columns["replay/prioritised/void_updates"]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent": "dqn", "core": "lstm"}, "core: wanted none with agent dqn, got lstm; --agent=r2d2 has a memory"),
        ({"agent": "vtrace", "epsilon": 0.1}, "epsilon: not a setting of agent vtrace; bcq, dqn, pqn and r2d2 take it"),
        (
            {"agent": "vtrace", "replay_parameters": PRIORITISED},
            "replay_parameters: wanted no prioritised replay with agent vtrace",
        ),
        ({"agent": "dqn", "env": "Reach-v0"}, "agent: wanted choices among actions"),
        ({"agent": "dqn", "log_std": "network"}, "log_std: wanted shared with agent dqn, whose policy does not use it"),
        ({"agent": "bcq", "initial_log_std": -1.0}, "initial_log_std: wanted 0.0 with agent bcq, .*, got -1.0"),
        ({"agent": "r2d2", "initial_log_std": -1.0}, "initial_log_std: wanted 0.0 with agent r2d2, .*, got -1.0"),
        ({"agent": "pqn", "log_std": "network"}, "log_std: wanted shared with agent pqn, .*, got network"),
        ({"agent": "r2d2", "core": "none", "burn_in": 0}, "core: wanted lstm or gru with agent r2d2, got none"),
        (  # steps 1,401 to 4,733 earn the first update
            {"agent": "r2d2", "environment_max_steps": 1_500, "learning_starts": 1_400},
            "environment_max_steps: wanted more than the",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        command(tmp_path, "train", **given)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_of_another_agent_is_one_line_and_test_mode_states_its_epsilon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**COMBINATIONS["dqn"], "environment_max_steps": 16}
    assert run("train", tmp_path, **settings) == 0
    with pytest.raises(ValueError, match="wanted") as refused:
        run("train_w_load", tmp_path, load="latest", agent="r2d2", environment_max_steps=32)
    assert len(str(refused.value).splitlines()) == 1
    with caplog.at_level("INFO", logger="springbok"):
        given = {"load": "latest", "results_dir": str(tmp_path), "test_episode_count": 2, "epsilon": 0.25}
        assert launch.run(launch.prepare("test", given, ["main.py"])) == 0
    (path,) = directory(tmp_path).path.glob("evaluation_*.json")
    assert json.loads(path.read_text())["protocol"]["actions"] == "epsilon-greedy (0.25)"


def test_settings_that_would_change_the_meaning_of_learned_values_are_refused(tmp_path: Path) -> None:
    """Their weights would fit: quantiles for atoms, other atoms, values that are rescaled."""
    refused: dict[str, dict[str, Any]] = {
        "rainbow": {"return_distribution": "qr", "v_min": -3.0, "v_max": 5.0},
        "r2d2": {"value_rescaling": False},
    }
    for name, others in refused.items():
        results = tmp_path / name
        assert run("train", results, **{**COMBINATIONS[name], "environment_max_steps": 48}) == 0
        for setting, value in others.items():
            with pytest.raises(ValueError, match=f"^{setting}: wanted .* as in the checkpoint, got {value}$"):
                command(results, "train_w_load", load="latest", **{setting: value})


def test_checkpoints_with_settings_that_an_agent_no_longer_takes_are_resumed(tmp_path: Path) -> None:
    """R2D2 once listed the distributions of returns, which it refused."""
    assert run("train", tmp_path, **{**COMBINATIONS["r2d2"], "environment_max_steps": 48}) == 0
    path = directory(tmp_path).checkpoint_paths()[-1]
    checkpoint = load_checkpoint(path)
    save_checkpoint(path, replace(checkpoint, settings={**checkpoint.settings, "distributional": "none", "quantiles": 200}))
    assert run("train_w_load", tmp_path, load="latest", environment_max_steps=96) == 0
    assert newest(tmp_path).counters.steps >= 96
