"""Scores of a policy that are estimated from recorded play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.networks.base import make_network
from learner.evaluation import estimating
from learner.plan import make_plan
from learner.runs.checkpoint import ACTING_MODULE, load_checkpoint, save_checkpoint
from replay.recordings.recording import open_recording
from tests.recordings import catching, record
from tests.support import CATCH, run_main, small_config
from tests.test_matrix import directory, run, settings_of
from wrappers.spec import EnvConfig
from wrappers.toys.catch import EPISODE_STEPS

SETTINGS: dict[str, dict[str, Any]] = {
    "stacked frames": {**CATCH, "frames_stacked": 3},
    "a core": {**CATCH, "core": "lstm", "core_size": 8},
    "a squashed policy of numbers": settings_of("vector-box", "none", action_distribution="squashed_gaussian"),
    "several choices, a mask and a core": settings_of("dict-multi-mask", "gru"),
}
ESTIMATES = ("importance_sampling", "weighted", "per_decision", "weighted_per_decision")


def trained(folder: Path, **settings: Any) -> Path:
    """Results of a short run, and a recording of what its policy plays in `recording`."""
    assert run("train", folder / "results", **{**settings, "environment_max_steps": 64}) == 0
    own = {"record_to": str(folder / "recording"), "test_episode_count": 20}
    assert run("test", folder / "results", load="latest", **own) == 0
    return folder


def estimated(folder: Path, recording: Path | None = None) -> dict[str, Any]:
    assert run("test", folder / "results", load="latest", estimate_from=str(recording or folder / "recording")) == 0
    (path,) = directory(folder / "results").path.glob("estimate_*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"), **CATCH)


@pytest.mark.parametrize(("name", "rows"), [*((name, 3) for name in SETTINGS), ("a core", 256)])
def test_the_estimate_of_the_policy_that_played_is_its_score(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ratios are 1, whatever the rows that pass the network together."""
    monkeypatch.setattr(estimating, "ROWS", rows)
    found = estimated(trained(tmp_path, **SETTINGS[name]))
    recording = open_recording(tmp_path / "recording")
    assert found["episodes"] == recording.episodes == 20
    assert found["recorded"] == pytest.approx(recording.mean_return, abs=1e-6)
    for estimate in ESTIMATES:
        assert found[estimate] == pytest.approx(recording.mean_return, abs=3e-5), estimate
    assert found["effective_episodes"] == pytest.approx(20, rel=1e-5)


def test_an_episode_has_the_steps_whose_action_was_used(folder: Path) -> None:
    """An autoreset between two episodes belongs to none."""
    config = small_config(**CATCH)
    network = make_network(make_plan(config).network)
    for records in open_recording(folder / "recording").streams:
        found = list(estimating.episodes_of(network, records))
        assert [len(episode.log_ratios) for episode in found] == [EPISODE_STEPS] * int((records["episode_length"] > 0).sum())
        returns = records["episode_return"][records["episode_length"] > 0]
        assert [float(episode.rewards.sum()) for episode in found] == returns.tolist()


def test_the_estimate_of_another_policy_is_near_its_score(tmp_path: Path) -> None:
    """One that moves left more often than the recorded one, whose returns all come from columns that it reaches."""
    folder = trained(tmp_path, **CATCH)
    own = {"record_to": str(folder / "more"), "test_episode_count": 1500}
    assert run("test", folder / "results", load="latest", **own) == 0
    path = directory(folder / "results").checkpoint_paths()[-1]
    checkpoint = load_checkpoint(path)
    checkpoint.agent["modules"][ACTING_MODULE]["policy_head.bias"] += torch.tensor([0.3, 0.0, 0.0])
    path.unlink()
    save_checkpoint(path, checkpoint)
    found = estimated(folder, folder / "more")
    assert run("test", folder / "results", load="latest", test_episode_count=1500) == 0
    newest = max(directory(folder / "results").path.glob("evaluation_*.json"), key=lambda each: each.stat().st_mtime_ns)
    score = json.loads(newest.read_text())["summary"]["mean_return"]
    assert found["effective_episodes"] < 1300
    for estimate in ESTIMATES:
        assert found[estimate] == pytest.approx(score, abs=0.2), estimate


def test_the_program_prints_the_estimates(tmp_path: Path) -> None:
    trained(tmp_path, **CATCH)
    flags = ["--load=latest", f"--results_dir={tmp_path / 'results'}", f"--estimate_from={tmp_path / 'recording'}"]
    done = run_main("--op_mode=test", *flags)
    assert done.returncode == 0, done.stderr
    assert "Mean return, estimated from 20 recorded episodes:\n" in done.stdout
    assert "Effective episodes: 20.0 of 20. " in done.stdout
    assert "Protocol" not in done.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"greedy": True},
            "^greedy: wanted false with --estimate_from, which compares probabilities and ",
        ),
        ({"render": True}, "^render: wanted false with --estimate_from, "),
        ({"estimate_from": "nowhere"}, "^recording: wanted a folder with recording.json in it or below it, got nowhere$"),
        ({"estimate_from": "other"}, "^recording: wanted the field behaviour_policy, which this run needs, got frames, "),
    ],
)
def test_what_cannot_be_estimated_is_refused(folder: Path, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    if given.get("estimate_from") == "other":
        record(tmp_path, EnvConfig(env="Catch-v0", frames_stacked=1), catching, steps=20)
        given = {"estimate_from": str(tmp_path)}
    with pytest.raises(ValueError, match=message):
        run("test", folder / "results", load="latest", **{"estimate_from": str(folder / "recording"), **given})


def test_agents_without_a_policy_have_no_estimate(folder: Path, tmp_path: Path) -> None:
    settings = {**CATCH, "agent": "dqn", "learning_starts": 10, "environment_max_steps": 64}
    del settings["worker_kind"], settings["batch_size"]
    assert run("train", tmp_path, **settings, reproducible=True) == 0
    with pytest.raises(ValueError, match="^estimate_from: wanted an agent that draws its actions from a policy, got dqn$"):
        run("test", tmp_path, load="latest", estimate_from=str(folder / "recording"))


def test_a_diverged_policy_is_an_error(folder: Path, tmp_path: Path) -> None:
    path = directory(folder / "results").checkpoint_paths()[-1]
    checkpoint = load_checkpoint(path)
    checkpoint.agent["modules"][ACTING_MODULE]["policy_head.bias"][0] = np.inf
    save_checkpoint(tmp_path / path.name, checkpoint)
    assert run("test", tmp_path, load=str(tmp_path / path.name), estimate_from=str(folder / "recording")) == 1
