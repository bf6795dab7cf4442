"""Files identify a contract by its fields. A file that fits is loaded, and an error names the first field that differs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from learner.runs.checkpoint import load_checkpoint, read_file
from learner.runs.loading import load_fitting_replay
from replay import ReplayConfig, make_mixture
from replay.base import Encoded
from replay.earlier_files import signature_of_repr, with_present_names
from replay.signature import check_contract, check_saved_mixture
from replay.trajectory import Field, Fields
from tests.builders import trajectory_contract
from tests.support import REPOSITORY, small_plan

OLD_FILE = REPOSITORY / "tests" / "fixtures" / "run_of_format_2" / "checkpoints" / "replay_000000199.pt"
OLD_CONTRACT = trajectory_contract(5, (10, 5), "uint8", 1, 3, 256)
OLD_REPR = (
    "TrajectoryContract(unroll_length=5, frame_shape=(10, 5), frame_dtype='uint8', frames_stacked=1, action_count=3, "
    "feature_count=256)"
)
OLD_CONFIGS = (ReplayConfig("queue", 1, 0.5), ReplayConfig("elite", 20, 0.5))


def old_state() -> dict[str, Any]:
    return read_file(OLD_FILE, mapped=False)[0]["replay"]["mixture"]


def encode(trajectories: Fields) -> Encoded:
    shape = trajectories["actions"].shape
    return Encoded(np.zeros((*shape, 256), np.float32), np.zeros((*shape, 3), np.float32))


def test_a_signature_is_plain_data_of_every_field() -> None:
    signature = OLD_CONTRACT.signature()
    assert json.loads(json.dumps(signature)) == signature
    assert list(signature) == list(OLD_CONTRACT.fields)
    assert signature["frames"] == [[6, 10, 5], "uint8"]
    assert signature["behaviour_policy"] == [[5, 3], "float32"]
    assert signature["environment_id"] == [[], "int32"]


@pytest.mark.parametrize("features", [0, 256])
def test_a_contract_saved_as_text_gives_the_same_signature(features: int) -> None:
    contract = replace(OLD_CONTRACT, feature_count=features)
    text = OLD_REPR.replace("256", str(features))
    assert with_present_names(signature_of_repr(text)) == contract.signature()
    check_contract(text, contract)


def test_a_saved_replay_of_an_earlier_version_loads() -> None:
    state = old_state()
    assert state["settings"]["contract"] == OLD_REPR
    check_saved_mixture(state, OLD_CONTRACT)
    mixture = make_mixture(OLD_CONFIGS, OLD_CONTRACT, 4, 0.0, np.random.default_rng(0), encode=encode)
    mixture.load_state_dict(state)
    saved, loaded = state["replays"], mixture.state_dict()["replays"]
    assert torch.equal(saved[1]["storage"]["pool"]["bytes"], loaded[1]["storage"]["pool"]["bytes"])
    assert torch.equal(saved[0]["waiting"]["frames"], loaded[0]["waiting"]["frames"])
    assert torch.equal(saved[0]["waiting"]["behaviour_logits"], loaded[0]["waiting"]["behaviour_policy"])
    before, now = (replays[1]["storage"]["columns"] for replays in (saved, loaded))
    assert torch.equal(before["behaviour_logits"], now["behaviour_policy"])


@pytest.mark.parametrize(
    ("changes", "field", "wanted", "got"),
    [
        ({"unroll_length": 7}, "frames", r"\(8, 10, 5\) .*uint8", r"\(6, 10, 5\) .*uint8"),
        ({"frame": Field((10, 5), "float32")}, "frames", r"\(6, 10, 5\) .*float32", r"\(6, 10, 5\) .*uint8"),
        ({"frames_stacked": 2}, "frames", r"\(7, 10, 5\) .*uint8", r"\(6, 10, 5\) .*uint8"),
        (
            {"acting": {**OLD_CONTRACT.acting, "behaviour_policy": Field((4,), "float32")}},
            "behaviour_policy",
            r"\(5, 4\) .*float32",
            r"\(5, 3\) .*float32",
        ),
        ({"feature_count": 9}, "behaviour_features", r"\(5, 9\) .*float32", r"\(5, 256\) .*float32"),
        ({"feature_count": 0}, "behaviour_features", "none", r"\(5, 256\) .*float32"),
    ],
)
def test_the_first_field_that_differs_is_named_with_both_shapes(
    changes: dict[str, Any], field: str, wanted: str, got: str
) -> None:
    contract = replace(OLD_CONTRACT, **changes)
    for saved in (OLD_REPR, OLD_CONTRACT.signature()):
        with pytest.raises(ValueError, match=f"field {field} .*{wanted}, got .*{got}$") as caught:
            check_contract(saved, contract)
        assert len(str(caught.value).splitlines()) == 1


def test_a_missing_field_is_named() -> None:
    without = replace(OLD_CONTRACT, feature_count=0).signature()
    with pytest.raises(ValueError, match=r"field behaviour_features .*\(5, 256\).*, got none$"):
        check_contract(without, OLD_CONTRACT)


@pytest.mark.parametrize("text", ["", "3", "f(", "TrajectoryContract()", OLD_REPR.replace("(10, 5)", "x"), "[1]\n" * 99])
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="wanted a contract, got ") as caught:
        check_contract(text, OLD_CONTRACT)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("state", [{}, {"settings": {}}, {"settings": 3}])
def test_anything_but_the_state_of_a_mixture_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wanted the state of a mixture"):
        check_saved_mixture(state, OLD_CONTRACT)


def test_a_replay_of_another_contract_is_refused_when_its_file_is_loaded() -> None:
    checkpoint = load_checkpoint(OLD_FILE.parent / "update_000000199.pt")
    plan = small_plan(**checkpoint.settings)
    assert load_fitting_replay(OLD_FILE, checkpoint, plan)["mixture"]["settings"]["contract"] == OLD_REPR
    plan = replace(plan, contract=replace(OLD_CONTRACT, frame=Field((20, 5), "uint8")))
    with pytest.raises(ValueError, match=r"field frames .*\(6, 20, 5\).*, got .*\(6, 10, 5\)"):
        load_fitting_replay(OLD_FILE, checkpoint, plan)
