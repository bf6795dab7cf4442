"""Every kind of observation with every kind of action: trains, resumes to the bit and plays, with cores and masks in turn.

Some of these combinations are exported, collected by worker processes, and trained from replays.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from learner import launch
from learner.export.export import DESCRIPTION, ONNX, PROGRAM
from learner.runs.checkpoint import Checkpoint, load_checkpoint
from learner.runs.directory import RunDirectory
from tests.matrix_env import ACTIONS, OBSERVATIONS
from tests.support import same

COMBINATIONS = [
    f"{observations}-{actions}{'-mask' if actions != 'box' and (row + column) % 2 else ''}"
    for row, observations in enumerate(OBSERVATIONS)
    for column, actions in enumerate(ACTIONS)
]
SMALL: dict[str, Any] = {
    "reproducible": True,
    "envs_per_worker": 2,
    "unroll_length": 4,
    "batch_size": 2,
    "environment_max_steps": 48,
    "checkpoint_period": 100,  # only at the end
    "log_period": 1e5,
    "hidden_sizes": "8",
    "core_size": 8,
    "lr_end_value": 6e-4,  # the learning rate stays: the parts of a run have other budgets
    "learner_threads": 1,
}


REPLAYS: dict[str, dict[str, Any]] = {
    "standard": {},
    "elite": {"dist_function": "kl_policy"},
    "attentive": {"dist_function": "kl_policy"},
}
TOYS = {"env": "Catch-v0,Avoid-v0", "network": "mlp", "frames_stacked": 1}
CLEAR = {"use_policy_cloning_loss": True, "use_value_cloning_loss": True}
LASER = {"use_kl_mask": True, "relevance": "behaviour"}


def run(mode: str, results: Path, **given: Any) -> int:
    given = {**given, "results_dir": str(results), "verbosity": 0}
    return launch.run(launch.prepare(mode, given, ["main.py", mode]))


def settings_of(combination: str, core: str, **others: Any) -> dict[str, Any]:
    env = f"tests.matrix_env:Matrix-{combination}-v0"
    return {**SMALL, "env": env, "core": core, "calibrate_input": core == "none", **others}


def directory(results: Path) -> RunDirectory:
    return RunDirectory((results / "latest").resolve())


def newest(results: Path) -> Checkpoint:
    return load_checkpoint(directory(results).checkpoint_paths()[-1])


def assert_resumes_to_the_bit(folder: Path, **settings: Any) -> None:
    """Half a run that is resumed ends like a whole one. The halves are in `folder / "parts"`."""
    whole, parts = folder / "whole", folder / "parts"
    steps = settings["environment_max_steps"]
    assert run("train", whole, **settings) == 0
    assert run("train", parts, **{**settings, "environment_max_steps": steps // 2}) == 0
    assert 0 < newest(parts).counters.updates < newest(whole).counters.updates
    assert run("train_w_load", parts, load="latest", environment_max_steps=steps) == 0
    assert same(newest(whole).agent, newest(parts).agent)


@pytest.mark.parametrize(("combination", "core"), [*zip(COMBINATIONS, cycle(("none", "lstm")), strict=False)])
def test_it_trains_resumes_and_plays(combination: str, core: str, tmp_path: Path) -> None:
    assert_resumes_to_the_bit(tmp_path, **settings_of(combination, core))
    assert run("test", tmp_path / "parts", load="latest", test_episode_count=3) == 0


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("combination", "core", "own", "inputs"),
    [
        ("vector-discrete-mask", "none", {}, ["vector", "action_mask"]),
        ("image-box", "none", {}, None),
        ("image-multi-mask", "lstm", {}, ["image", "action_mask"]),
        ("dict-discrete", "none", {"network": "impala_deep", "adaptive_pool": 3}, ["vector", "image"]),
        ("dict-box", "lstm", {"core_inputs": True}, ["vector", "image", "previous_action", "previous_reward"]),
        ("two toys", "none", {**TOYS, "popart": True, "task_input": True}, ["observation", "_task", "_task_input"]),
    ],
)
def test_it_is_exported_with_an_input_a_leaf(
    combination: str, core: str, own: dict[str, Any], inputs: list[str] | None, tmp_path: Path
) -> None:
    settings = settings_of(combination, core, layer_norm=core != "none", environment_max_steps=16) | own
    assert run("train", tmp_path, **settings) == 0
    assert run("export", tmp_path, load="latest") == 0
    (path,) = directory(tmp_path).path.glob(f"exported_*/{DESCRIPTION}")
    described = json.loads(path.read_text())
    assert set(described["largest_difference"]) == {PROGRAM, ONNX}
    assert max(described["largest_difference"].values()) < 1e-3
    assert ("state" in described) == (core != "none")
    if inputs is None:
        assert described["input"]["name"] == "observations"
    else:
        assert [each["name"] for each in described["inputs"]] == inputs


FEW_STEPS = {"epochs": 2, "minibatches": 2}


@pytest.mark.parametrize(
    ("agent", "combination", "core", "own"),
    [
        ("ppo", "vector-discrete", "none", {"normalise_observations": True, "normalise_rewards": True}),
        ("ppo", "image-multi-mask", "none", {"minibatch_unit": "columns", "popart": True}),
        ("ppo", "dict-box", "none", {"action_distribution": "beta", "recompute_advantages": True}),
        (
            "ppo",
            "vector-box",
            "none",
            {"action_distribution": "squashed_gaussian", "policy_objective": "kl", "target_kl": 0.01, "intrinsic": "icm"},
        ),
        ("ppo", "dict-discrete-mask", "lstm", {"core_inputs": True, "intrinsic": "icm"}),
        ("a2c", "dict-multi-mask", "none", {"normalise_rewards": True, "intrinsic": "rnd", "predictor_share": 0.5}),
        ("a2c", "vector-box", "lstm", {"normalise_observations": True, "popart": True}),
        ("trpo", "image-multi-mask", "none", {**FEW_STEPS, "normalise_rewards": True}),
        ("trpo", "vector-box", "lstm", {**FEW_STEPS, "normalise_observations": True, "action_bound_loss_weight": 1.0}),
        ("pqn", "dict-multi-mask", "none", {**FEW_STEPS, "epsilon_fraction": 1e-9, "dueling": True, "exploration": "ladder"}),
        ("pqn", "image-discrete-mask", "lstm", {**FEW_STEPS, "epsilon_fraction": 1e-9, "core_inputs": True}),
        ("es", "dict-multi-mask", "none", {"population": 4, "normalise_observations": True}),
        ("es", "image-box", "gru", {"population": 4, "core_inputs": True}),
        ("cem", "vector-box", "lstm", {"population": 4, "elites": 2}),
        ("linucb", "vector-discrete", "none", {"hidden_sizes": "256,256"}),
        ("linucb", "dict-discrete-mask", "none", {"network": "auto", "thompson": True}),
    ],
)
def test_on_policy_agents_train_resume_play_and_are_exported(
    agent: str, combination: str, core: str, own: dict[str, Any], tmp_path: Path
) -> None:
    calibrate = core == "none" and not own.get("normalise_observations")
    settings = {**settings_of(combination, core, agent=agent), "lr": SMALL["lr_end_value"], **own, "calibrate_input": calibrate}
    if agent in ("cem", "linucb"):  # they have no optimiser
        del settings["lr"], settings["lr_end_value"]
    assert_resumes_to_the_bit(tmp_path, **settings)
    assert run("test", tmp_path / "parts", load="latest", test_episode_count=3) == 0
    if agent in ("a2c", "trpo", "cem"):
        return  # they have the networks of PPO and ES
    assert run("export", tmp_path / "parts", load="latest") == 0
    assert list(directory(tmp_path / "parts").path.glob(f"exported_*/{DESCRIPTION}"))


@pytest.mark.parametrize("worker_kind", ["cpu", "central"])
def test_worker_processes_handle_leaves_masks_and_states(worker_kind: str, tmp_path: Path) -> None:
    own = {"reproducible": False, "worker_kind": worker_kind, "worker_count": 1, "preflight": False}
    assert run("train", tmp_path, **settings_of("dict-multi-mask", "lstm", core_inputs=True, **own)) == 0
    counters = newest(tmp_path).counters
    assert counters.steps >= 48
    assert counters.episodes > 0


@pytest.mark.parametrize(
    ("kind", "combination", "core"),
    [
        ("standard", "image-discrete-mask", "lstm"),
        ("elite", "dict-box", "lstm"),
        ("elite", "image-multi-mask", "none"),
        ("attentive", "dict-multi-mask", "lstm"),
        ("attentive", "vector-box", "none"),
    ],
)
def test_it_trains_from_replays_with_clear_and_laser(kind: str, combination: str, core: str, tmp_path: Path) -> None:
    queue = {"type": "queue", "capacity": 1, "sample_ratio": 0.5}
    other = {"type": kind, "capacity": 4, "sample_ratio": 0.5, **REPLAYS[kind]}
    own = {"replay_parameters": json.dumps([queue, other]), "save_replay": True, "environment_max_steps": 96}
    own["intrinsic"] = "none" if combination.startswith("image") else "rnd"
    assert_resumes_to_the_bit(tmp_path, **settings_of(combination, core, **own, **CLEAR, **LASER, popart=core == "none"))


@pytest.mark.parametrize("combination", ["dict-box", "dict-multi-mask"])
def test_the_implied_relevance_is_refused_where_actions_cannot_be_summed(combination: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^relevance: wanted behaviour for .*, got implied") as refused:
        run("train", tmp_path, **settings_of(combination, "lstm", use_kl_mask=True))
    assert len(str(refused.value).splitlines()) == 1
