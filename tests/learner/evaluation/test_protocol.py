"""The protocol says all that decides a score, in plain data and in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from learner.evaluation.protocol import describe_protocol, evaluation_env, evaluation_protocol
from wrappers import EnvConfig

PONG = EnvConfig(env="PongNoFrameskip-v4")


def test_the_line_names_everything_that_decides_a_score() -> None:
    line = describe_protocol(evaluation_protocol(PONG, greedy=False))
    assert "\n" not in line
    for part in (
        "PongNoFrameskip-v4",
        "0 to 29 no-op frames at the start",
        "FIRE pressed at the start and after a lost life",
        "sticky actions 0,",
        "frame skip 4",
        "84x84 grey",
        "stack of 4",
        "full games (a lost life is no end)",
        "cut at 108,000 frames",
        "minimal action set (6)",
        "sampled actions",
        "raw rewards",
    ):
        assert part in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noop_threshold": 8}, "0 to 7 no-op frames"),
        ({"noop_threshold": 0}, "no no-ops at the start"),
        ({"fire_reset": False}, "no FIRE pressed"),
        ({"sticky_actions": 0.25}, "sticky actions 0.25"),
        ({"skipped_frames": 2}, "frame skip 2"),
        ({"frame_scale_resolution": "42,40"}, "42x40"),
        ({"grayscaling_frames": False}, "84x84 RGB"),
        ({"frames_stacked": 1}, "stack of 1"),
        ({"max_episode_frames": 18_000}, "cut at 18,000 frames"),
        ({"full_action_space": True}, "full action set (18)"),
        ({"env": "ALE/Breakout-v5"}, "minimal action set (4)"),
    ],
)
def test_every_setting_of_the_environment_changes_the_data_and_the_line(change: dict[str, object], said: str) -> None:
    before = evaluation_protocol(PONG, greedy=False)
    after = evaluation_protocol(replace(PONG, **change), greedy=False)  # type: ignore[arg-type]
    assert before != after
    assert said not in describe_protocol(before)
    assert said in describe_protocol(after)


def test_greedy_and_sampled_actions_are_told_apart() -> None:
    assert "greedy actions" in describe_protocol(evaluation_protocol(PONG, greedy=True))
    assert "greedy" not in describe_protocol(evaluation_protocol(PONG, greedy=False))


def test_a_game_without_fire_is_not_said_to_press_it() -> None:
    line = describe_protocol(evaluation_protocol(EnvConfig(env="MsPacmanNoFrameskip-v4"), greedy=False))
    assert "no FIRE pressed" in line


def test_the_data_survives_json() -> None:
    protocol = evaluation_protocol(PONG, greedy=True)
    assert json.loads(json.dumps(protocol)) == protocol


@pytest.mark.parametrize("episodic_life", [True, False])
def test_evaluation_plays_full_games_whatever_training_did(episodic_life: bool) -> None:
    trained = replace(PONG, episodic_life=episodic_life, sticky_actions=0.25, frames_stacked=2)
    assert evaluation_env(trained) == replace(trained, episodic_life=False)
    assert evaluation_protocol(trained, greedy=False)["full_games"]


def test_an_environment_outside_atari_is_not_described_by_what_it_does_not_read() -> None:
    protocol = evaluation_protocol(EnvConfig(env="Catch-v0", frames_stacked=1), greedy=False)
    line = describe_protocol(protocol)
    assert "Catch-v0" in line
    assert "10x5" in line
    assert "3 actions" in line
    for word in ("no-op", "FIRE", "sticky", "grey", "life", "None"):
        assert word not in line
