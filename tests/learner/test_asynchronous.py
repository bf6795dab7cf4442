"""Whole runs of APPO and IMPACT: they learn, resume to the bit, are tested and exported, and refuse what makes no sense."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.writer import read_metrics
from learner.settings.help import help_text
from tests.learner.launching import command
from tests.learner.runs.reproducible import assert_a_kill_changes_nothing
from tests.learner.solving import solves
from tests.learner.test_action_spaces import ACTIONS, SOLVED
from tests.learner.test_train import run_training
from tests.support import small_config
from tests.test_matrix import assert_resumes_to_the_bit, directory, newest, run, settings_of

AGENTS: dict[str, dict[str, Any]] = {
    "appo": {"agent": "appo", "kl_weight": 1.0, "epochs": 2, "minibatches": 2},
    "impact": {"agent": "impact", "replay_parameters": '[{"type": "circular", "slots": 2, "uses": 3, "sample_ratio": 1.0}]'},
    "vmpo": {"agent": "vmpo", "target_update_period": 2},
}
EACH = pytest.mark.parametrize("agent", AGENTS)
NORMALISED = {"normalise_observations": True, "normalise_rewards": True, "calibrate_input": False}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "one masked choice": settings_of("image-discrete-mask", "none"),
    "several masked choices": settings_of("dict-multi-mask", "lstm", burn_in=2, core_inputs=True),
    "gaussian": settings_of("dict-box", "gru", **NORMALISED),
    "squashed_gaussian": settings_of("vector-box", "none", **NORMALISED, action_distribution="squashed_gaussian"),
    "beta": settings_of("vector-box", "none", action_distribution="beta", separate_value=True, compress_replay=True),
}


CASES = [*zip(cycle(("appo", "impact")), COMBINATIONS, strict=False), ("vmpo", "several masked choices"), ("vmpo", "gaussian")]


@pytest.mark.parametrize(("agent", "name"), CASES)
def test_it_resumes_to_the_bit_plays_and_is_exported(agent: str, name: str, tmp_path: Path) -> None:
    own = {"appo": {"intrinsic": "rnd"}, "impact": {"intrinsic": "icm"}}.get(agent, {})
    settings = {**COMBINATIONS[name], **AGENTS[agent], **own, "lr": 6e-4}
    assert_resumes_to_the_bit(tmp_path, **settings)
    parts = tmp_path / "parts"
    state = newest(parts).agent
    assert state["modules"].keys() == {"network", "target", "multipliers" if agent == "vmpo" else "intrinsic"}
    assert agent == "vmpo" or int(state["numbers"]["optimizer_steps"]["count"]) > 0
    assert run("test", parts, load="latest", test_episode_count=2) == 0
    if agent != "impact":
        return  # the others have the network of IMPACT, which is exported
    assert run("export", parts, load="latest") == 0
    assert list(directory(parts).path.glob("exported_*/policy.pt2"))


FOUR_USES = {"replay_parameters": '[{"type": "circular", "slots": 4, "uses": 4, "sample_ratio": 1.0}]'}
LEARNED: dict[tuple[str, str], dict[str, Any]] = {
    ("appo", "several choices"): {"environment_max_steps": 10_000},
    ("appo", "gaussian"): {"environment_max_steps": 40_000},
    ("impact", "several choices"): {"environment_max_steps": 5_000},
    ("impact", "gaussian"): {"environment_max_steps": 20_000, **FOUR_USES},
}
"""Settings of a run, which is solved by its end. IMPACT uses each batch several times, so it needs fewer steps."""


@pytest.mark.parametrize(("agent", "name"), LEARNED)
def test_it_learns_several_choices_and_real_numbers(agent: str, name: str, tmp_path: Path) -> None:
    settings = {**ACTIONS[name], "agent": agent, **LEARNED[agent, name]}
    assert solves(SOLVED[settings["env"]], tmp_path, **settings)


@EACH
def test_a_killed_run_ends_as_if_nothing_had_happened(agent: str, tmp_path: Path) -> None:
    own = {"reproducible": True, "checkpoint_period": 10, "return_window": 2, "log_period": 1e5, "precision": "float32"}
    moving = {} if agent == "vmpo" else {"clip_end_value": 0.01}
    settings = {**AGENTS[agent], **own, **moving, "environment_max_steps": 1200}
    assert_a_kill_changes_nothing(tmp_path, **settings)


@pytest.mark.parametrize("worker_kind", ["cpu", "central"])
def test_batches_of_worker_processes_are_used_again(worker_kind: str, tmp_path: Path) -> None:
    circular = '[{"type": "circular", "slots": 2, "uses": 3, "sample_ratio": 1.0}]'
    settings = {"agent": "impact", "worker_kind": worker_kind, "worker_count": 1, "log_period": 1e-3, "prepared_batches": 2}
    found, checkpoint = run_training(tmp_path, **settings, replay_parameters=circular, environment_max_steps=1200)
    columns, counters = read_metrics(found.metrics), checkpoint.counters
    # 3 uses of each batch of 4 trajectories, fewer of the first two; the last ones are not used up.
    assert 3 * counters.trajectories / 4 - 12 <= counters.updates <= 3 * counters.trajectories / 4
    assert 1 < np.nanmax(columns["replay/circular/draws"]) <= 3  # a mean over the updates of one record
    assert np.nanmax(columns["replay/circular/dropped"]) == 0
    assert np.nanmax(columns["losses/zero_gradient_fraction"]) <= 1


def test_impact_has_a_circular_replay_by_default_whose_size_follows_from_the_actions() -> None:
    for env, slots, uses in (("Catch-v0", 4, 2), ("Reach-v0", 16, 20)):
        config = small_config(agent="impact", env=env)
        (replay,) = config.replays
        assert (replay.type, replay.slots, replay.uses) == ("circular", slots, uses)
        assert config.agent_settings.target_update_period == 2 * slots * uses
        assert config.settings["target_update_period"] == 0, "a resumed run computes it again"
    assert small_config(agent="impact", target_update_period=7).agent_settings.target_update_period == 7
    assert small_config(agent="appo").agent_settings.target_update_period == 32
    assert [replay.type for replay in small_config(agent="appo").replays] == ["queue"]


REPLAY = "replay_parameters"
STANDARD = '[{"type": "standard", "capacity": 40, "sample_ratio": 1.0}]'
UNEVEN = (
    '[{"type": "queue", "capacity": 1, "sample_ratio": 0.7}, {"type": "circular", "slots": 2, "uses": 2, "sample_ratio": 0.3}]'
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"agent": "appo", "replay_parameters": STANDARD},
            f"{REPLAY}: wanted a queue or a circular replay .*, got standard",
        ),
        (
            {"agent": "impact", "replay_parameters": STANDARD},
            f"{REPLAY}: wanted a queue or a circular replay .*, got standard",
        ),
        (
            {"agent": "impact", "replay_parameters": UNEVEN},
            rf"{REPLAY}\[1\]: wanted a sample_ratio .*, got 0.3, .* 1.2",
        ),
        ({"agent": "impact", "target_worker_clip": 0.5}, "target_worker_clip: wanted a ratio from 1 to 1000000, got 0.5"),
        ({"agent": "appo", "target_worker_clip": 2.0}, "target_worker_clip: not a setting of agent appo; impact takes it"),
        ({"agent": "appo", "advantages": "td"}, "advantages: wanted vtrace or gae, got 'td'"),
        ({"agent": "appo", "clip_end_value": 0.0}, "clip_end_value: wanted -1 or a number from 0.001 to 0.999, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        command(tmp_path, "train", **given)
    assert "\n" not in str(refused.value)


def test_the_help_shows_the_agent_s_own_defaults() -> None:
    circular = json.dumps([{"type": "circular", "sample_ratio": 1.0}])
    assert f"--replay_parameters={circular}" in " ".join(help_text("impact").split())
    assert f"--replay_parameters={circular}" not in " ".join(help_text("vtrace").split())
