"""A model card shows the score of test mode, the protocol, the commands and the files of the run that exist."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from learner.runs.directory import RunDirectory
from tests.support import catch_flags, run_main


def card_of(run: RunDirectory) -> tuple[dict[str, Any], str, Path]:
    """The header, the text, and the folder of an exported card."""
    done = run_main("--op_mode=export", f"--load={run.path}", "--card")
    assert done.returncode == 0, done.stderr
    (path,) = run.path.glob("exported_*/README.md")
    _, header, text = path.read_text().split("---\n", 2)
    return yaml.safe_load(header), text, path.parent


def test_a_card_shows_score_protocol_commands_and_pictures(tmp_path: Path) -> None:
    assert run_main("--op_mode=train", *catch_flags(results_dir=tmp_path, environment_max_steps=400)).returncode == 0
    run = RunDirectory((tmp_path / "latest").resolve())
    header, text, folder = card_of(run)
    assert "last training episodes" in text
    assert not (folder / "replay.mp4").exists()
    assert run_main("--op_mode=test", f"--load={run.path}", "--test_episode_count=5").returncode == 0
    (result,) = run.path.glob("evaluation_*.json")
    content = json.loads(result.read_text())
    update = result.stem.split("_")[1]
    (run.path / f"video_{update}_1.mp4").write_bytes(b"film")
    run.curve.write_bytes(b"curve")
    header, text, folder = card_of(run)
    (metric,) = header["model-index"][0]["results"][0]["metrics"]
    returns = [episode["return"] for episode in content["episodes"]]
    assert metric["type"] == "mean_reward"
    assert float(metric["value"].split(" +/- ")[0]) == round(sum(returns) / len(returns), 2)
    assert header["model-index"][0]["results"][0]["dataset"] == {"name": "Catch-v0", "type": "Catch-v0"}
    assert {"Catch-v0", "vtrace", "reinforcement-learning"} <= set(header["tags"])
    assert "over 5 test episodes" in text
    assert "--op_mode=train" in text
    assert "--op_mode=test" in text
    assert all(f"| {name} | {value} |" in text for name, value in content["protocol"].items())
    assert (folder / "replay.mp4").read_bytes() == b"film"
    assert (folder / "learning_curve.png").read_bytes() == b"curve"
    assert "(learning_curve.png)" in text
    assert "evaluation.gif" not in text


def test_the_commands_of_a_card_are_those_that_trained_and_one_that_repeats_the_score(tmp_path: Path) -> None:
    flags = catch_flags(env="Catch-v0,Avoid-v0", results_dir=tmp_path, environment_max_steps=400)
    assert run_main("--op_mode=train", *flags).returncode == 0
    run = RunDirectory((tmp_path / "latest").resolve())
    assert run_main(f"--resume={run.path}", "--more_steps=200", "--learner_threads=1").returncode == 0
    assert run_main("--op_mode=test", f"--load={run.path}", "--test_episode_count=3", "--greedy", "--seed=5").returncode == 0
    _, text, _ = card_of(run)
    first, resumed, test = (shlex.split(line)[2:] for line in text.splitlines() if line.startswith("    python main.py "))
    assert first == ["--op_mode=train", *flags]
    assert resumed == [f"--resume={run.path}", "--more_steps=200", "--learner_threads=1"]
    (before,) = run.path.glob("evaluation_*.json")
    wanted = json.loads(before.read_text())
    before.unlink()
    assert run_main(*test).returncode == 0
    (after,) = run.path.glob("evaluation_*.json")
    got = json.loads(after.read_text())
    assert (got["episodes"], got["protocol"]) == (wanted["episodes"], wanted["protocol"])


def test_the_command_of_a_card_repeats_the_random_actions_of_the_score(tmp_path: Path) -> None:
    flags = catch_flags(agent="dqn", results_dir=tmp_path, environment_max_steps=400, learning_starts=100)
    assert run_main("--op_mode=train", *flags).returncode == 0
    run = RunDirectory((tmp_path / "latest").resolve())
    assert run_main("--op_mode=test", f"--load={run.path}", "--test_episode_count=2", "--epsilon=0.25").returncode == 0
    _, text, _ = card_of(run)
    (test,) = (line for line in text.splitlines() if "--op_mode=test" in line)
    assert "--epsilon=0.25" in test


def test_no_card_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert run_main("--op_mode=train", *catch_flags(results_dir=tmp_path, environment_max_steps=400)).returncode == 0
    assert run_main("--op_mode=export", f"--load={tmp_path}/latest").returncode == 0
    assert list(tmp_path.glob("*/exported_*/policy.pt2"))
    assert not list(tmp_path.glob("*/exported_*/README.md"))
