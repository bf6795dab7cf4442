"""From the play of a policy over a recording to agents that learn from it, through the whole program."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import main
from checked_files import locked
from learner.export.export import DESCRIPTION
from learner.metrics.writer import read_metrics
from replay.recordings.recording import INDEX, open_recording, read_index
from tests.recordings import Player, catching, half_catching, playing_at_random, record
from tests.support import CATCH, run_main
from tests.test_matrix import SMALL, assert_resumes_to_the_bit, directory, newest, run, settings_of
from tests.test_refusals import assert_refused
from wrappers import make_spec
from wrappers.legal import random_actions
from wrappers.spec import EnvConfig

CONFIG = EnvConfig(env="Catch-v0", frames_stacked=1)
BCQ: dict[str, Any] = {"agent": "bcq", "learning_starts": 9, "batches_at_once": 2, "lr_end_value": -1.0}
CASES: dict[str, dict[str, Any]] = {
    "bc, several choices and a core": settings_of("dict-multi-mask", "lstm", agent="bc", burn_in=2, entropy_loss_weight=0.1),
    "bc, numbers": settings_of("vector-box", "gru", agent="bc", normalise_observations=True),
    "marwil": settings_of("image-discrete", "none", agent="marwil", normalise_rewards=True, separate_value=True),
    "marwil, numbers and a core": settings_of("dict-box", "lstm", agent="marwil", advantage_weight=0.5),
    "bcq": settings_of("dict-discrete-mask", "none", **BCQ, dueling=True, n_step=2),
}
KEPT = ("env", "network", "frames_stacked", "learner_threads")
CATCH_RUN: dict[str, Any] = {**{name: CATCH[name] for name in KEPT}, "log_period": 60.0, "device": "cpu"}


QUICK_MARWIL: dict[str, Any] = {
    "environment_max_steps": 100_000,
    "gamma": 1.0,
    "batch_size": 16,
    "hidden_sizes": "128",
    "lr": 3e-3,
}
QUICK_BCQ: dict[str, Any] = {
    "environment_max_steps": 5000,
    "updates_per_step": 0.5,
    "batches_at_once": 32,
    "hidden_sizes": "32",
    "lr": 4e-3,
}


def make_recording(folder: Path, env: str, player: Player | None = None, steps: int = 60, environments: int = 3) -> Path:
    config = EnvConfig(env=env, frames_stacked=1)
    spec = make_spec(config)
    chosen = player or (lambda observations, generator: random_actions(spec, observations, generator))
    record(folder, config, chosen, steps, environments=environments)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_an_agent_resumes_to_the_bit_plays_and_is_exported(name: str, tmp_path: Path) -> None:
    settings = {**CASES[name], "frames_stacked": 1, "environment_max_steps": 96, "lr": SMALL["lr_end_value"]}
    settings["calibrate_input"] = settings["calibrate_input"] and not settings.get("normalise_observations")
    settings["recording"] = str(make_recording(tmp_path / "recording", settings["env"]))
    assert_resumes_to_the_bit(tmp_path, **settings)
    assert run("test", tmp_path / "parts", load="latest", test_episode_count=3) == 0
    if name.startswith("marwil") or name == "bc, numbers":
        return  # it has the network of V-trace, which other tests export
    assert run("export", tmp_path / "parts", load="latest") == 0
    assert list(directory(tmp_path / "parts").path.glob(f"exported_*/{DESCRIPTION}"))


def score(results: Path, **given: Any) -> float:
    """Mean return of a hundred episodes, from the file that test mode writes."""
    assert run("test", results, load="latest", test_episode_count=100, **given) == 0
    (path,) = directory(results).path.glob("evaluation_*.json")
    found = float(json.loads(path.read_text())["summary"]["mean_return"])
    path.unlink()
    return found


def learned(results: Path, recording: Path, **settings: Any) -> float:
    """The score of the greedy policy that an agent has learned from a recording of Catch."""
    assert run("train", results, **{**CATCH_RUN, "recording": str(recording), "eval_seconds": 0.0, **settings}) == 0
    return score(results, greedy=True)


def test_cloning_becomes_as_good_as_the_player(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0", catching, steps=400)
    assert open_recording(recording).mean_return == 1.0
    assert learned(tmp_path / "results", recording, agent="bc", environment_max_steps=60_000) == 1.0


def test_marwil_becomes_better_than_the_player_and_cloning_does_not(tmp_path: Path) -> None:
    """The greedy policy would hide what chance adds, so both sample."""
    recording = make_recording(tmp_path / "recording", "Catch-v0", half_catching, steps=3000)
    assert open_recording(recording).mean_return < 0.2
    found = {}
    for name, own in (("cloning", {"advantage_weight": 0.0}), ("marwil", {"advantage_weight": 3.0})):
        learned(tmp_path / name, recording, agent="marwil", **QUICK_MARWIL, **own)
        found[name] = score(tmp_path / name)
    assert found["marwil"] > found["cloning"] + 0.2


def test_bcq_learns_the_best_play_from_play_at_random(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0", playing_at_random, steps=3000)
    assert open_recording(recording).mean_return < 0
    assert learned(tmp_path / "results", recording, agent="bcq", **QUICK_BCQ) > 0.9


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of V-trace on Catch, in `results`, and what its policy played, drawn in `sampled` and best in `greedy`."""
    folder = tmp_path_factory.mktemp("played")
    assert run("train", folder / "results", **{**CATCH, "environment_max_steps": 400}) == 0
    for name in ("sampled", "greedy"):
        own = {"record_to": str(folder / name), "greedy": name == "greedy", "test_episode_count": 40}
        assert run("test", folder / "results", load="latest", **own) == 0
    return folder


def test_test_mode_records_what_it_plays(played: Path) -> None:
    (result,) = (
        found
        for path in directory(played / "results").path.glob("evaluation_*.json")
        if (found := json.loads(path.read_text()))["protocol"]["actions"] == "sampled"
    )
    recording = open_recording(played / "sampled")
    assert recording.episodes == 40
    assert recording.steps >= sum(episode["length"] for episode in result["episodes"])
    assert recording.mean_return == pytest.approx(result["summary"]["mean_return"])
    (about,) = read_index(played / "sampled")["about"]
    assert (about["agent"], about["protocol"], about["checkpoint"]) == ("vtrace", result["protocol"], result["checkpoint"])
    assert "behaviour_policy" in (recording.streams[0].dtype.names or ())
    assert "behaviour_policy" not in (open_recording(played / "greedy").streams[0].dtype.names or ())


def test_an_agent_that_corrects_for_the_policy_learns_from_its_play(played: Path, tmp_path: Path) -> None:
    """Its distribution was stored where actions were drawn from it."""
    settings = {**CATCH_RUN, "environment_max_steps": 2000, "unroll_length": 10}
    assert run("train", tmp_path, recording=str(played / "sampled"), **settings) == 0
    with pytest.raises(ValueError, match="^recording: wanted the field behaviour_policy, which this run needs, got frames, "):
        run("train", tmp_path, recording=str(played / "greedy"), **settings)


def test_an_agent_of_continuous_actions_learns_from_a_recording(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Reach-v0")
    settings = {**CATCH_RUN, "env": "Reach-v0", "agent": "sac", "environment_max_steps": 300, "learning_starts": 50}
    assert run("train", tmp_path / "results", recording=str(recording), **settings) == 0
    assert newest(tmp_path / "results").counters.updates > 0


def test_a_run_that_overshoots_twice_its_budget_prints_an_accepted_command(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0")
    settings = {**CATCH_RUN, "agent": "bc", "recording": recording, "environment_max_steps": 200, "results_dir": tmp_path}
    done = run_main("--op_mode=train", *(f"--{name}={value}" for name, value in settings.items()))
    assert done.returncode == 0, done.stderr
    (resume,) = (line.partition("main.py ")[2] for line in done.stdout.splitlines() if "--op_mode=train_w_load" in line)
    steps = newest(tmp_path).counters.steps
    assert steps > 400
    assert main.prepare(["main.py", *shlex.split(resume)]).config.training.environment_max_steps == steps + 200


def test_several_learners_read_one_recording(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0", catching)
    settings = {**CATCH_RUN, "agent": "bc", "recording": str(recording), "eval_seconds": 0.0, "learner_count": 2}
    assert run("train", tmp_path / "results", **settings, batch_size=2, environment_max_steps=800) == 0
    assert newest(tmp_path / "results").counters.steps >= 800


@pytest.mark.pictures
def test_evaluations_take_the_place_of_training_returns(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0", catching)
    flags = {**CATCH_RUN, "agent": "bc", "recording": str(recording), "environment_max_steps": 1000, "log_period": 0.1}
    done = run_main(
        "--op_mode=train", f"--results_dir={tmp_path / 'results'}", *(f"--{name}={value}" for name, value in flags.items())
    )
    assert done.returncode == 0, done.stderr
    assert "updates on recorded steps\n" in done.stdout
    assert "episodes, mean return" not in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Recording: "))
    assert line == f"Recording: 177 steps of 18 episodes of Catch-v0, mean return 1.00, in {recording}"
    run_folder = directory(tmp_path / "results")
    metrics = read_metrics(run_folder.metrics)
    assert np.isfinite(metrics["eval/episodic_return"]).any()
    assert not np.isfinite(metrics.get("charts/episodic_return_mean", np.full(1, np.nan))).any()
    assert run_folder.best.is_file()
    assert run_folder.curve.is_file()


COMPARED = '{"type": "%s", "capacity": 16, "sample_ratio": 0.5, "dist_function": "kl_policy"}'


def mixture(kind: str) -> str:
    """Half of each batch from a replay that compares policies."""
    return f'[{{"type": "queue", "capacity": 1, "sample_ratio": 0.5}}, {COMPARED % kind}]'


@pytest.mark.parametrize("kind", ["attentive", "elite"])
def test_replays_compare_recorded_policies_with_the_learned_one(kind: str, played: Path, tmp_path: Path) -> None:
    settings = {**CATCH_RUN, "environment_max_steps": 1000, "unroll_length": 10, "batch_size": 4}
    assert run("train", tmp_path, recording=str(played / "sampled"), replay_parameters=mixture(kind), **settings) == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no recording": (
        {"agent": "bc"},
        "^recording: wanted a folder with agent bc, which learns from recordings",
    ),
    "on policy": (
        {"agent": "ppo", "recording": "R"},
        "^recording: wanted none with agent ppo, which learns from its own",
    ),
    "episodes": (
        {"agent": "es", "recording": "R"},
        "^recording: wanted none with agent es, which learns from its own",
    ),
    "no folder": (
        {"agent": "bc", "recording": "nowhere"},
        "^recording: wanted a folder with recording.json in it",
    ),
    "workers": (
        {"agent": "bc", "recording": "R", "worker_kind": "cpu"},
        "^worker_kind: wanted recorded with a recording in place of environments, ",
    ),
    "no kind": (
        {"worker_kind": "recorded"},
        "^recording: wanted the folder of a recording with worker_kind recorded",
    ),
    "policies": (
        {"agent": "bc", "recording": "R", "replay_parameters": mixture("elite")},
        "^replay_parameters: wanted no replay that compares policies with agent bc, which does not know .*, got elite$",
    ),
    "a field": ({"recording": "R"}, "^recording: wanted the field behaviour_policy, which this run needs, got frames, "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    given, message = REFUSED[name]
    if given.get("recording") == "R":
        given = {**given, "recording": str(make_recording(tmp_path / "recording", "Catch-v0", catching, steps=10))}
    with pytest.raises(ValueError, match=message) as refused:
        run("train", tmp_path / "results", **CATCH_RUN, **given)
    assert len(str(refused.value).splitlines()) == 1


def test_an_agent_does_not_learn_from_environments_in_another_order(tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "recording", "Catch-v0,Avoid-v0")
    arguments = ["--agent=marwil", "--env=Avoid-v0,Catch-v0", "--popart", "--learner_threads=1", f"--recording={recording}"]
    said = "recording: wanted one of Avoid-v0,Catch-v0, got one of Catch-v0,Avoid-v0"
    assert_refused(run_main, tmp_path / "results", arguments, said)


def test_a_test_does_not_record_where_another_process_does(played: Path, tmp_path: Path) -> None:
    flags = ("--op_mode=test", f"--results_dir={played / 'results'}", f"--record_to={tmp_path}")
    with locked(tmp_path):
        done = run_main(*flags)
    assert done.returncode == 2
    assert f"record_to: wanted a folder that no other process records into, got {tmp_path}" in done.stdout + done.stderr
    assert not (tmp_path / INDEX).exists()


def test_nothing_is_estimated_from_impossible_values(played: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(played / "sampled", tmp_path / "copy"))
    path = min(folder.glob("*.npy"))
    records = np.load(path)
    records["rewards"][0] = np.nan
    np.save(path, records)
    with pytest.raises(ValueError, match=f"^{path}: wanted finite rewards"):
        run("test", played / "results", load="latest", estimate_from=str(folder))


def test_shown_games_are_not_kept(played: Path) -> None:
    with pytest.raises(ValueError, match="^render: wanted false with --record_to, "):
        run("test", played / "results", load="latest", render=True, record_to=str(played / "other"))
