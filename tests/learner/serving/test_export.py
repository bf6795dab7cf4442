"""What leaves the house computes what the network computes, and the file beside it says how to feed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agents.networks.actor_critic import make_network
from learner.runs.checkpoint import Checkpoint, Counters
from learner.serving import export
from learner.serving.export import (
    LAYOUT,
    ONNX,
    PROGRAM,
    ExportedPolicy,
    export_policy,
    largest_difference,
    read_onnx,
    read_program,
)
from learner.settings.config import Config
from tests.support import small_config
from workers import random_observations
from wrappers import make_spec

SETTINGS = {"frames_stacked": 2}


def trained_checkpoint(config: Config) -> Checkpoint:
    """Weights and a calibration that are nobody's defaults."""
    spec = make_spec(config.env)
    seeded = torch.Generator().manual_seed(3)
    network = make_network(config.network, spec.observation_shape, spec.action_count, generator=seeded)
    network.calibrate(random_observations(config.env, 5))
    with torch.no_grad():
        network.policy_head.weight.mul_(100.0)
    return Checkpoint(config.settings, {}, {}, Counters(steps=80, updates=7), {"network": network.state_dict()}, 0.1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedPolicy, Tensor]:
    """The folder written, the network it was made of, and observations of real play."""
    folder = tmp_path_factory.mktemp("run")
    config = small_config(**SETTINGS)
    checkpoint = trained_checkpoint(config)
    assert export_policy(config, checkpoint, folder / "update_000000007.pt", folder) == 0
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    network.load_state_dict(checkpoint.agent["network"])
    return folder / "exported_7", ExportedPolicy(network.only_act()), random_observations(config.env, 9)


@pytest.mark.parametrize(("name", "read"), [(PROGRAM, read_program), (ONNX, read_onnx)])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_file_gives_the_networks_logits_and_values(
    exported: tuple[Path, ExportedPolicy, Tensor], name: str, read: object, count: int
) -> None:
    folder, policy, observations = exported
    if name == ONNX:
        pytest.importorskip("onnxruntime")
    assert observations.dtype == torch.uint8
    assert callable(read)
    logits, values = read(folder / name)(observations[:count])
    wanted_logits, wanted_values = policy(observations[:count])
    torch.testing.assert_close(logits, wanted_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values, wanted_values, rtol=1e-4, atol=1e-4)
    assert wanted_logits.std() > 0.1, "else anything would be close"


def test_the_onnx_file_names_its_axes(exported: tuple[Path, ExportedPolicy, Tensor]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(exported[0] / ONNX, providers=["CPUExecutionProvider"])
    told = {value.name: (value.type, value.shape) for value in [*session.get_inputs(), *session.get_outputs()]}
    assert told == {
        "observations": ("tensor(uint8)", ["batch", 2, 10, 5]),
        "logits": ("tensor(float)", ["batch", 3]),
        "values": ("tensor(float)", ["batch"]),
    }


def test_the_file_beside_says_how_to_feed_it(exported: tuple[Path, ExportedPolicy, Tensor]) -> None:
    folder, _, observations = exported
    told = json.loads((folder / LAYOUT).read_text())
    assert told["input"]["shape"] == ["batch", *observations.shape[1:]] == ["batch", 2, 10, 5]
    assert told["input"]["axes"] == ["batch", "frames", "height", "width"]
    assert (told["input"]["dtype"], told["input"]["name"]) == ("uint8", "observations")
    assert told["actions"] == ["LEFT", "STAY", "RIGHT"]
    assert told["outputs"]["logits"]["shape"] == ["batch", 3]
    assert (told["env"], told["training"]["updates"], told["checkpoint"]) == ("Catch-v0", 7, "update_000000007.pt")
    assert told["protocol"]["frames_stacked"] == 2
    assert all(0 <= difference < 1e-4 for difference in told["largest_difference"].values())


def test_atari_frames_are_explained_in_order() -> None:
    config = small_config(env="PongNoFrameskip-v4", network="nature", frames_stacked=4)
    checkpoint = Checkpoint(config.settings, {}, {}, Counters(), {}, 0.1)
    told = export.describe(config, make_spec(config.env), checkpoint, Path("a.pt"), {})
    assert told["input"]["shape"] == ["batch", 4, 84, 84]
    assert [line.split()[0] for line in told["input"]["preprocessing"]] == ["repeat", "take", "convert", "resize"]
    assert told["actions"][:2] == ["NOOP", "FIRE"]
    assert "clipped by abs_one_sign" in told["outputs"]["values"]["meaning"]


def test_a_file_that_computes_something_else_is_an_error(
    exported: tuple[Path, ExportedPolicy, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    config = small_config(**SETTINGS)
    _, policy, observations = exported

    def slightly_off(some: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = policy(some)
        return logits, values + 0.01

    assert largest_difference(policy, slightly_off, observations) == pytest.approx(0.01, abs=1e-4)
    monkeypatch.setattr(export, "write_program", lambda policy, observations, path: None)
    monkeypatch.setattr(export, "read_program", lambda path: slightly_off)
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert export_policy(config, trained_checkpoint(config), Path("a.pt"), tmp_path) == 1
    assert any("wanted the same logits and values" in line for line in lines)
    assert any("pip install -r requirements-export.txt" in line for line in lines)
