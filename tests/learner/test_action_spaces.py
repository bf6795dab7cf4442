"""Whole runs with every kind of action: they learn, repeat, resume, are tested and exported."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner import launch
from learner.export.export import DESCRIPTION, ONNX, PROGRAM, read_onnx, read_program
from tests.learner.launching import command, trained
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing, settings_of
from tests.learner.solving import solves
from tests.learner.test_train import KINDS, mixture_with, run_training
from workers import random_observations
from wrappers import EnvConfig, make_spec
from wrappers.spaces import Box, MultiDiscrete, Packing

QUICKLY: dict[str, Any] = {
    "envs_per_worker": 8,
    "batch_size": 8,
    "unroll_length": 8,
    "log_period": 60.0,
    "clip_rewards": False,
    "optimizer": "adam",
    "lr": 3e-3,
    "gamma": 0.5,
}
REACH: dict[str, Any] = {
    **QUICKLY,
    "env": "Reach-v0",
    "entropy_loss_weight": 0.0,
    "initial_log_std": -1,
    "environment_max_steps": 40_000,
}
ACTIONS: dict[str, dict[str, Any]] = {
    "several choices": {**QUICKLY, "env": "Locks-v0", "environment_max_steps": 10_000},
    "masked choice": {**QUICKLY, "env": "Masked-v0", "environment_max_steps": 20_000},
    "gaussian": REACH,
    "gaussian of the network": {**REACH, "log_std": "network", "lr": 1e-3},
    "squashed_gaussian": {**REACH, "action_distribution": "squashed_gaussian"},
    "beta": {**REACH, "action_distribution": "beta"},
}
SOLVED = {"Locks-v0": 7.0, "Masked-v0": 6.0, "Reach-v0": 0.0}
"""Mean return of the last hundred episodes, with sampled actions. Random play has less than 1, 0 and -5."""

EACH = pytest.mark.parametrize("name", ACTIONS)


def briefly(name: str, **settings: Any) -> dict[str, Any]:
    return {**ACTIONS[name], "environment_max_steps": 600, "calibrate_input": False, **settings}


@EACH
def test_every_kind_of_action_is_learned(tmp_path: Path, name: str) -> None:
    settings = ACTIONS[name]
    assert solves(SOLVED[settings["env"]], tmp_path, **settings)


@pytest.mark.parametrize("name", ["masked choice", "beta"])  # tests/test_matrix.py has others
def test_a_killed_and_resumed_run_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    settings = {**briefly(name), **settings_of("fifo and reservoir"), "return_window": 1}
    assert_a_kill_changes_nothing(tmp_path, **settings)


@pytest.mark.parametrize(("name", "worker_kind"), [*zip(ACTIONS, cycle(("cpu", "central")), strict=False)])
def test_worker_processes_act_and_store_what_was_drawn(tmp_path: Path, name: str, worker_kind: str) -> None:
    """A policy that has hardly changed gives actions that it stored the ratio 1."""
    settings = briefly(name, worker_kind=worker_kind, worker_count=1, lr=1e-6, lr_end_value=1e-6, log_period=1e-3)
    run, checkpoint = run_training(tmp_path, **settings)
    assert checkpoint.counters.steps >= 600
    rows = [line.split(",") for line in run.metrics.read_text().splitlines()]
    ratios = [float(row[rows[0].index("vtrace/mean_rho")]) for row in rows[1:]]
    assert min(ratios) > 0.999


@pytest.mark.parametrize(
    ("name", "kind"), [*zip(ACTIONS, cycle(("elite on the policy", "elite that inserts", "attentive")), strict=False)]
)
def test_replays_compare_policies_of_every_kind(tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = KINDS[kind]
    monkeypatch.setitem(KINDS, kind, {**own, "dist_function": "kl_policy"})
    run, checkpoint = run_training(tmp_path, **briefly(name, replay_parameters=mixture_with(kind), environment_max_steps=900))
    assert checkpoint.counters.updates > 20
    header, *rows = (line.split(",") for line in run.metrics.read_text().splitlines())
    column = header.index(f"replay/{own['type']}/distance")
    assert any(row[column] not in ("", "nan") and float(row[column]) > 0 for row in rows)


@pytest.mark.onnx
@EACH
def test_a_run_is_tested_and_exported(tmp_path: Path, name: str) -> None:
    """The files' action is the deterministic one, as the environment takes it."""
    settings = briefly(name, calibrate_input=True)
    run = trained(tmp_path, **settings)
    for greedy in (False, True):
        asked = {"load": str(run.path), "test_episode_count": 5, "greedy": greedy}
        assert launch.run(command(tmp_path, "test", **asked)) == 0
    results = [json.loads(path.read_text()) for path in run.path.glob("evaluation_*.json")]
    assert [result["summary"]["episodes"] for result in results] == [5, 5]
    assert launch.run(command(tmp_path, "export", load=str(run.path))) == 0
    (folder,) = run.path.glob("exported_*")
    config = EnvConfig(settings["env"], 1)
    space, observations = make_spec(config).action, random_observations(config, 3)
    described = json.loads((folder / DESCRIPTION).read_text())
    parameters = "policy" if isinstance(space, Box) else "logits"
    assert list(described["outputs"]) == [parameters, "values", "action"]
    assert described["actions"] == space.to_json()
    for read in (read_program(folder / PROGRAM), read_onnx(folder / ONNX)):
        policy, _, action = read(unpacked(config, observations))
        assert list(policy.shape) == [len(observations), *described["outputs"][parameters]["shape"][1:]]
        assert action.dtype == getattr(torch, space.dtype)
        if isinstance(space, Box):
            drawn = greedy_in_program(name, policy)
            np.testing.assert_allclose(action.numpy(), space.to_environment(drawn.numpy()), rtol=1e-5, atol=1e-5)
            assert ((action >= torch.tensor(space.low)) & (action <= torch.tensor(space.high))).all()
        else:
            counts = space.counts if isinstance(space, MultiDiscrete) else (space.mask_size,)
            wanted = torch.stack([part.argmax(-1) for part in policy.split(counts, -1)], -1)
            assert torch.equal(action, wanted.reshape(action.shape))


def unpacked(config: EnvConfig, observations: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Observations as an exported policy takes them: several leaves by their names."""
    if not (leaves := make_spec(config).leaves):
        return observations
    return {name: torch.from_numpy(leaf) for name, leaf in Packing(leaves).unpack(observations.numpy()).items()}


def greedy_in_program(name: str, policy: torch.Tensor) -> torch.Tensor:
    """The deterministic action before it is scaled, from the definition of the distribution."""
    one, other = policy.chunk(2, -1)
    if name == "beta":
        hump = [torch.nn.functional.softplus(part) for part in (one, other)]
        return 2 * hump[0] / (hump[0] + hump[1]) - 1
    return one.tanh() if name == "squashed_gaussian" else one


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"env": "Locks-v0", "action_distribution": "gaussian"}, "action_distribution: wanted auto or categorical"),
        ({"env": "Catch-v0", "action_distribution": "beta"}, "action_distribution: wanted auto or categorical"),
        ({"env": "Reach-v0", "action_distribution": "categorical"}, "action_distribution: wanted auto, gaussian"),
        ({"env": "Reach-v0", "use_kl_mask": True}, "relevance: wanted behaviour"),
        ({"env": "Locks-v0", "use_kl_mask": True}, "relevance: wanted behaviour"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(tmp_path: Path, settings: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^{wanted}.*, got ") as caught:
        command(tmp_path, "train", **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_another_distribution_than_the_checkpoint_s_is_refused(tmp_path: Path) -> None:
    """The weights of a beta and of a gaussian of the network have the same shapes."""
    run = trained(tmp_path, **briefly("gaussian of the network"))
    for distribution, refused in (("beta", True), ("gaussian", False)):
        asked = {"load": str(run.path), "action_distribution": distribution, "environment_max_steps": 700}
        if refused:
            with pytest.raises(ValueError, match="action_distribution: wanted auto as in the checkpoint, got beta"):
                command(tmp_path, "train_w_load", **asked)
        else:
            assert command(tmp_path, "train_w_load", **asked).config.network_settings.action_distribution == distribution
