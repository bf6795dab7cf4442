"""Exported files compute the same as the network, and policy.json describes their inputs and outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import ActorCritic
from agents.networks.base import make_network
from agents.networks.q_network import Q_VALUES
from checked_files import LOCK_NAME
from learner.export import description, export
from learner.export.export import (
    DESCRIPTION,
    ONNX,
    PROGRAM,
    export_policy,
    exported_name,
    largest_difference,
    read_onnx,
    read_program,
)
from learner.export.exported_policy import ExportedPolicy, ToEnvironment
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, Counters
from learner.settings.config import Config
from tests.learner.evaluation.support import new_network
from tests.support import small_config
from workers import random_observations
from wrappers.spaces import Box, Leaf, Packing

pytestmark = pytest.mark.onnx

SETTINGS = {"frames_stacked": 2}


def trained_checkpoint(config: Config) -> Checkpoint:
    """Weights and a calibration that differ from the defaults."""
    network = new_network(config, torch.Generator().manual_seed(3))
    network.calibrate(random_observations(config.env, 5))
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
    agent = {"modules": {"network": network.state_dict()}}
    return Checkpoint(config.settings, {}, {}, Counters(steps=80, updates=7), agent, 0.1)


def readers_of(folder: Path) -> list[Callable[..., tuple[Tensor, ...]]]:
    return [read_program(folder / PROGRAM), *([read_onnx(folder / ONNX)] if find_spec("onnxruntime") else [])]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedPolicy, Tensor]:
    """The exported folder, the exported network, and observations of random play."""
    folder = tmp_path_factory.mktemp("run")
    config = small_config(**SETTINGS)
    checkpoint = trained_checkpoint(config)
    assert export_policy(make_plan(config), checkpoint, folder / "update_000000007.pt", folder) == 0
    network = new_network(config)
    network.load_state_dict(checkpoint.agent["modules"]["network"])
    return folder / "exported_7", ExportedPolicy(network.only_act()), random_observations(config.env, 9)


@pytest.mark.parametrize(("name", "read"), [(PROGRAM, read_program), (ONNX, read_onnx)])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_an_exported_file_computes_the_logits_and_values_of_the_network(
    exported: tuple[Path, ExportedPolicy, Tensor], name: str, read: object, count: int
) -> None:
    folder, policy, observations = exported
    if name == ONNX:
        pytest.importorskip("onnxruntime")
    assert observations.dtype == torch.uint8
    assert callable(read)
    logits, values, action = read(folder / name)(observations[:count])
    wanted_logits, wanted_values, _ = policy(observations[:count])
    torch.testing.assert_close(logits, wanted_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values, wanted_values, rtol=1e-4, atol=1e-4)
    assert torch.equal(action, logits.argmax(-1))
    assert wanted_logits.std() > 0.1, "wanted logits that differ, or every file would pass"


def test_the_onnx_file_names_its_axes(exported: tuple[Path, ExportedPolicy, Tensor]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(exported[0] / ONNX, providers=["CPUExecutionProvider"])
    described = {value.name: (value.type, value.shape) for value in [*session.get_inputs(), *session.get_outputs()]}
    assert described == {
        "observations": ("tensor(uint8)", ["batch", 2, 10, 5]),
        "logits": ("tensor(float)", ["batch", 3]),
        "values": ("tensor(float)", ["batch"]),
        "action": ("tensor(int64)", ["batch"]),
    }


def test_the_description_names_inputs_outputs_and_actions(exported: tuple[Path, ExportedPolicy, Tensor]) -> None:
    folder, _, observations = exported
    described = json.loads((folder / DESCRIPTION).read_text())
    assert described["input"]["shape"] == ["batch", *observations.shape[1:]] == ["batch", 2, 10, 5]
    assert described["input"]["axes"] == ["batch", "frames", "height", "width"]
    assert (described["input"]["dtype"], described["input"]["name"]) == ("uint8", "observations")
    assert described["actions"] == ["LEFT", "STAY", "RIGHT"]
    assert {name: output["shape"] for name, output in described["outputs"].items()} == {
        "logits": ["batch", 3],
        "values": ["batch"],
        "action": ["batch"],
    }
    assert (described["env"], described["training"]["updates"], described["checkpoint"]) == (
        "Catch-v0",
        7,
        "update_000000007.pt",
    )
    assert described["protocol"]["frames_stacked"] == 2
    assert all(0 <= difference < 1e-4 for difference in described["largest_difference"].values())


def test_the_preprocessing_of_atari_frames_is_described_in_order() -> None:
    config = small_config(env="PongNoFrameskip-v4", network="nature", frames_stacked=4)
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(), {}, 0.1)
    described = description.describe(make_plan(config), checkpoint, Path("a.pt"), {})
    assert described["input"]["shape"] == ["batch", 4, 84, 84]
    assert [line.split()[0] for line in described["input"]["preprocessing"]] == ["repeat", "take", "convert", "resize"]
    assert described["actions"][:2] == ["NOOP", "FIRE"]
    assert "clipped by abs_one_sign" in described["outputs"]["values"]["meaning"]


def test_a_core_has_its_state_as_input_and_output(tmp_path: Path) -> None:
    """An exported policy that is played by hand follows the network through an episode."""
    config = small_config(core="lstm", core_size=8)
    generator = torch.Generator().manual_seed(3)
    network: ActorCritic = make_network(make_plan(config).network, generator)
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
    agent = {"modules": {"network": network.state_dict()}}
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(steps=80, updates=7), agent, 0.1)
    assert export_policy(make_plan(config), checkpoint, tmp_path / "update_000000007.pt", tmp_path) == 0
    folder, size = tmp_path / "exported_7", network.state_size
    described = json.loads((folder / DESCRIPTION).read_text())["state"]
    assert (described["input"], described["output"], described["shape"]) == ("state_in", "state_out", ["batch", size])
    assert "zeros at an episode's first observation" in described["values"]
    policy, observations = ExportedPolicy(network.only_act()), random_observations(config.env, 9)[:6]
    for read in readers_of(folder):
        wanted_state = got_state = torch.zeros(2, size)
        for row in observations.split(2):
            *wanted, wanted_state = policy(row, wanted_state)
            *got, got_state = read(row, got_state)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got_state, wanted_state, rtol=1e-4, atol=1e-5)
        assert got_state.any(-1).all()


def test_without_other_numbers_the_actions_are_compared() -> None:
    actions = torch.tensor([0, 1, 2])

    def policy(some: Tensor) -> tuple[Tensor, ...]:
        return (actions[: len(some)],)

    assert largest_difference(policy, policy, (torch.zeros(3),)) == 0.0  # type: ignore[arg-type]
    assert largest_difference(policy, lambda some: (policy(some)[0] + 1,), (torch.zeros(3),)) == 1.0  # type: ignore[arg-type]


def test_a_file_that_computes_something_else_is_refused(
    exported: tuple[Path, ExportedPolicy, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    config = small_config(**SETTINGS)
    _, policy, observations = exported

    def slightly_off(some: Tensor) -> tuple[Tensor, ...]:
        logits, values, action = policy(some)
        return logits, values + 0.01, action

    assert largest_difference(policy, slightly_off, (observations,)) == pytest.approx(0.01, abs=1e-4)
    monkeypatch.setattr(export, "write_program", lambda policy, observations, path: None)
    monkeypatch.setattr(export, "read_program", lambda path: slightly_off)
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert export_policy(make_plan(config), trained_checkpoint(config), Path("update_000000007.pt"), tmp_path) == 1
    assert any(PROGRAM in line and "at most 0.001, got 0.01" in line for line in lines)
    assert any("pip install -r requirements-export.txt" in line for line in lines)


OWN_TORSO = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], 5)

    def forward(self, inputs):
        features = self.layer(inputs.flatten(1))
        return {}
"""
UNTRACEABLE = "features if features.sum() > 0 else features + 0"
NOT_IN_ONNX = "features + torch.special.bessel_j0(features)"


@pytest.mark.parametrize(("result", "file", "place"), [(UNTRACEABLE, PROGRAM, "line 12 of my_net.py"), (NOT_IN_ONNX, ONNX, "")])
def test_a_torso_that_cannot_be_exported_is_one_line_with_the_cause(
    result: str, file: str, place: str, tmp_path: Path, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    if file == ONNX:
        pytest.importorskip("onnxruntime")
    (tmp_path / "my_net.py").write_text(OWN_TORSO.format(result))
    config = small_config(**SETTINGS, network=f"{tmp_path / 'my_net.py'}:Net")
    agent = {"modules": {"network": new_network(config).state_dict()}}
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(updates=7), agent, 0.1)
    assert export_policy(make_plan(config), checkpoint, Path("update_000000007.pt"), tmp_path) == 1
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {tmp_path / 'exported_7' / file}: wanted a network that can be exported, got ")
    assert place in errors[0]
    assert "\n" not in errors[0]
    assert capfd.readouterr().err == ""
    written = {path.name for path in (tmp_path / "exported_7").iterdir()} - {LOCK_NAME}
    assert written == (set() if file == PROGRAM else {PROGRAM, DESCRIPTION})


@pytest.mark.parametrize(
    ("frame_shape", "axes"),
    [((4,), ["feature"]), ((10, 5), ["height", "width"]), ((10, 5, 3), ["height", "width", "colour"])],
)
def test_the_axes_of_a_frame_are_named_by_its_shape(frame_shape: tuple[int, ...], axes: list[str]) -> None:
    config = small_config(**SETTINGS)
    plan = make_plan(config)
    plan = replace(plan, spec=replace(plan.spec, frame_shape=frame_shape))
    described = description.describe(plan, trained_checkpoint(config), Path("a.pt"), {})
    assert described["input"]["axes"] == ["batch", "frames", *axes]
    assert len(described["input"]["shape"]) == 2 + len(axes)


ODD_LEAVES = tuple(
    Leaf(name, shape, dtype)
    for name, shape, dtype in (
        ("action_mask", (3,), "uint8"),
        ("a b.c-d/é", (10, 5), "uint8"),
        ("cat", (4,), "float32"),  # like operations of the network
        ("view", (2, 3), "float32"),
        ("network.policy_head.bias", (), "float32"),  # like weights
        ("values", (3,), "float32"),  # like an output
        ("state_in", (2,), "float32"),
    )
)


def test_leaves_of_any_name_are_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files compute what the network computes of packed frames."""
    config = small_config(**SETTINGS, core="gru", core_size=8)
    packing, count, generator = Packing(ODD_LEAVES), 8, np.random.default_rng(1)
    plan = make_plan(config)
    spec = replace(plan.spec, leaves=ODD_LEAVES, frame_shape=(packing.size,))
    network_config = replace(plan.network, leaves=ODD_LEAVES, observation_shape=spec.observation_shape)
    values = {leaf.name: generator.integers(0, 2, (2 * count, *leaf.shape)).astype(leaf.dtype) for leaf in ODD_LEAVES}
    values["action_mask"][:, 0] = 1
    packed = torch.from_numpy(packing.pack(values).reshape(count, 2, -1))
    network: ActorCritic = make_network(network_config, torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(updates=7), {"modules": {"network": network.state_dict()}}, 0.1)
    plan = replace(plan, spec=spec, network=network_config)
    monkeypatch.setattr(export, "random_observations", lambda *arguments: packed)
    assert export_policy(plan, checkpoint, Path("update_000000007.pt"), tmp_path) == 0

    inputs = json.loads((tmp_path / "exported_7" / DESCRIPTION).read_text())["inputs"]
    names = [each["name"] for each in inputs]
    assert names == [*(leaf.name for leaf in ODD_LEAVES[:-2]), "observation_values", "observation_state_in"]
    assert [(each["shape"], each["dtype"]) for each in inputs] == [
        (["batch", 2, *leaf.shape], leaf.dtype) for leaf in ODD_LEAVES
    ]
    assert [each["axes"][2:] for each in inputs[:3]] == [["feature"], ["height", "width"], ["feature"]]
    assert inputs[0]["values"].startswith("1 for a legal action")

    state = torch.ones(count, network.state_size)
    wanted = network.infer(packed, state).output
    parts = (torch.from_numpy(values[leaf.name]).unflatten(0, (count, 2)) for leaf in ODD_LEAVES)
    leaves = dict(zip(names, parts, strict=True))
    legal = leaves["action_mask"][:, -1]
    for read in readers_of(tmp_path / "exported_7"):
        logits, got_values, action, *_ = read(leaves, state)
        torch.testing.assert_close(logits, wanted.policy, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got_values, wanted.values, rtol=1e-4, atol=1e-4)
        assert legal.gather(1, action[:, None]).all()
        assert (logits[legal == 0] < -1e7).all()
    assert not legal.all()


def test_the_previous_action_of_real_numbers_is_described() -> None:
    config = small_config(env="Reach-v0", core="lstm", core_inputs=True)
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(), {}, 0.1)
    described = description.describe(make_plan(config), checkpoint, Path("a.pt"), {})
    values = {each["name"]: each["values"] for each in described["inputs"]}
    assert list(values) == ["observation", "previous_action", "previous_reward"]
    assert "before it is clipped and rescaled" in values["previous_action"]
    assert "raw reward" in values["previous_reward"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("run/checkpoints/update_000000050.pt", "exported_50"),
        ("run/checkpoints/best.pt", "exported_50"),
        ("run/checkpoints/left_behind_update_000000050.pt", "exported_left_behind_update_000000050"),
        ("models/update_000000050.pt", "exported_50"),
        ("models/best.pt", "exported_best"),
        ("models/seed_1.pt", "exported_seed_1"),
        ("models/seed_2.pt", "exported_seed_2"),
    ],
)
def test_checkpoints_of_equal_updates_are_exported_into_folders_of_their_own(path: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    assert exported_name(tmp_path / path, 50) == name


def test_two_files_in_one_folder_are_both_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ONNX_PACKAGES", ("onnx of a test",))
    config = small_config(**SETTINGS)
    for name in ("seed_1", "seed_2"):
        assert export_policy(make_plan(config), trained_checkpoint(config), tmp_path / f"{name}.pt", tmp_path) == 0
        assert json.loads((tmp_path / f"exported_{name}" / DESCRIPTION).read_text())["checkpoint"] == f"{name}.pt"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_largest_bounds_have_a_middle() -> None:
    largest = float(np.finfo(np.float32).max)
    scale = ToEnvironment(Box((-largest, largest), (largest, largest)))
    actions = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    assert scale(actions).tolist() == [[-largest, largest], [0.0, largest], [largest, largest]]


def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.log, "disabled", True)  # parallel pytest could not send a captured line with this name
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run_\xff"))
    folder.mkdir()
    config = small_config(**SETTINGS)
    assert export_policy(make_plan(config), trained_checkpoint(config), folder / "update_000000007.pt", folder) == 0
    written = {path.name for path in (folder / "exported_7").iterdir()} - {LOCK_NAME}
    assert written == {PROGRAM, DESCRIPTION, *([ONNX] if find_spec("onnxruntime") else [])}


@pytest.mark.parametrize("settings", [{"agent": "dqn"}, {"agent": "r2d2"}, {"agent": "r2d2", "value_rescaling": False}])
def test_the_description_says_whether_values_are_rescaled(settings: dict[str, str | bool]) -> None:
    own = {"replay_parameters": '[{"type": "standard", "capacity": 40, "sample_ratio": 1.0}]', "replay_fill_fraction": 0.0}
    config = small_config(**settings, **own, **({"core": "lstm"} if settings["agent"] == "r2d2" else {}))
    meaning = description._describe_outputs(make_plan(config))[Q_VALUES]["meaning"]
    assert ("h(x) = " in meaning) == (settings == {"agent": "r2d2"})
    assert "discounted sum of rewards, as they are learned from, of each action" in meaning
