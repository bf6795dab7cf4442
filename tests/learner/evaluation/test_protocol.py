"""The protocol holds every setting on which a score depends; a named protocol sets its values and refuses others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from learner.evaluation.protocol import (
    OWN,
    PROTOCOLS,
    apply_protocol,
    check_protocol_of_env,
    check_same_protocol,
    describe_protocol,
    evaluation_protocol,
)
from learner.settings.config import DEFAULTS, check_settings
from tests.support import small_config
from wrappers import EnvConfig, make_spec

PONG = EnvConfig(env="PongNoFrameskip-v4")
ATARI: dict[str, Any] = {"env": "PongNoFrameskip-v4", "network": "nature", "frames_stacked": 4}

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"noop_threshold": 8}, "0 to 7 no-op frames"),
    ({"noop_threshold": 0}, "no no-ops"),
    ({"fire_reset": False}, "no FIRE"),
    ({"sticky_actions": 0.25}, "sticky actions 0.25"),
    ({"skipped_frames": 2}, "frame skip 2"),
    ({"frame_scale_resolution": "42,40"}, "42x40"),
    ({"grayscaling_frames": False}, "RGB"),
    ({"frames_stacked": 1}, "stack of 1"),
    ({"max_episode_frames": 18_000}, "18,000"),
    ({"full_action_space": True}, "full action set"),
    ({"env": "ALE/Breakout-v5"}, "(of 4)"),
]


def protocol_of(config: EnvConfig, greedy: bool, epsilon: float | None = None) -> dict[str, Any]:
    return evaluation_protocol(config, make_spec(config), greedy, epsilon)


def line_of(config: EnvConfig, greedy: bool) -> str:
    return describe_protocol(config, make_spec(config), protocol_of(config, greedy))


def test_the_data_names_every_setting_and_survives_json() -> None:
    protocol = protocol_of(PONG, greedy=False)
    assert json.loads(json.dumps(protocol)) == protocol
    assert protocol == {
        "protocol": "classic",
        "env": "PongNoFrameskip-v4",
        "full_games": True,
        "rewards": "raw",
        "actions": "sampled",
        "action_count": 6,
        "frame_shape": [84, 84],
        "frames_stacked": 4,
        "frame_skip": 4,
        "max_episode_frames": 108_000,
        "noop_threshold": 30,
        "fire_at_start": True,
        "fire_after_lost_life": True,
        "sticky_actions": 0.0,
        "action_set": "minimal",
        "colour": "grey",
    }


def test_the_printed_protocol_is_one_line_with_every_setting() -> None:
    line = line_of(PONG, greedy=False)
    assert "\n" not in line
    values = (
        "PongNoFrameskip-v4 (classic",
        "0 to 29",
        "FIRE",
        "skip 4",
        "84x84",
        "grey",
        "108,000",
        "(of 6)",
        "sampled",
        "raw",
    )
    assert [value for value in values if value not in line] == []


@pytest.mark.parametrize(("change", "value"), CHANGES)
def test_every_setting_of_the_environment_changes_the_data_and_the_line(change: dict[str, Any], value: str) -> None:
    other = replace(PONG, **change)
    assert protocol_of(PONG, greedy=False) != protocol_of(other, greedy=False)
    assert value not in line_of(PONG, greedy=False)
    assert value in line_of(other, greedy=False)


def test_greedy_and_sampled_actions_are_different_protocols() -> None:
    assert [protocol_of(PONG, greedy)["actions"] for greedy in (True, False)] == ["greedy", "sampled"]
    assert "greedy" in line_of(PONG, greedy=True)
    assert "greedy" not in line_of(PONG, greedy=False)


@pytest.mark.parametrize(("agent", "wanted"), [("es", "greedy"), ("linucb", "greedy"), ("dqn", "greedy"), ("ppo", "sampled")])
def test_an_agent_that_draws_no_action_is_greedy(agent: str, wanted: str) -> None:
    config = small_config(agent=agent)
    assert protocol_of(config.env, False, config.epsilon)["actions"] == wanted


def test_a_game_without_fire_does_not_press_it() -> None:
    protocol = protocol_of(EnvConfig(env="MsPacmanNoFrameskip-v4"), greedy=False)
    assert (protocol["fire_at_start"], protocol["fire_after_lost_life"]) == (False, False)


def test_another_family_is_not_described_by_settings_of_atari() -> None:
    catch = EnvConfig(env="Catch-v0", frames_stacked=1)
    assert not {"noop_threshold", "sticky_actions", "colour"} & set(protocol_of(catch, greedy=False))
    line = line_of(catch, greedy=False)
    assert [value for value in ("Catch-v0", "10x5", "(of 3)") if value not in line] == []
    assert [value for value in ("no-op", "FIRE", "sticky", "grey", "life", "None", OWN) if value in line] == []


def test_machado_sets_every_value_that_it_prescribes() -> None:
    settings = apply_protocol({**DEFAULTS, "protocol": "machado"}, {})
    assert (settings["sticky_actions"], settings["full_action_space"], settings["episodic_life"]) == (0.25, True, False)
    assert (settings["noop_threshold"], settings["fire_reset"], settings["max_episode_frames"]) == (0, False, 108_000)
    check_settings(settings)


def test_the_defaults_follow_the_classic_protocol() -> None:
    assert apply_protocol({**DEFAULTS, "protocol": "classic"}, {}) == {**DEFAULTS, "protocol": "classic"}


def test_as_set_changes_no_setting() -> None:
    settings = {**DEFAULTS, "sticky_actions": 0.1}
    assert apply_protocol(settings, {}) == settings
    check_settings(settings)


@pytest.mark.parametrize(
    ("protocol", "given"),
    [
        ("machado", {"sticky_actions": 0.0}),
        ("machado", {"episodic_life": True}),
        ("machado", {"full_action_space": False}),
        ("classic", {"sticky_actions": 0.25}),
        ("classic", {"noop_threshold": 0}),
    ],
)
def test_a_setting_that_contradicts_its_protocol_is_refused_in_one_line(protocol: str, given: dict[str, Any]) -> None:
    settings = apply_protocol({**DEFAULTS, "protocol": protocol, **given}, given)
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name}: wanted .*protocol={protocol}.* got {given[name]}") as error:
        check_settings(settings)
    assert "\n" not in str(error.value)


def test_the_classic_protocol_leaves_episodic_life_to_training() -> None:
    for episodic_life in (True, False):
        settings = apply_protocol({**DEFAULTS, "protocol": "classic", "episodic_life": episodic_life}, {})
        assert settings["episodic_life"] is episodic_life
        check_settings(settings)


def test_an_environment_without_the_named_protocol_is_refused() -> None:
    check_protocol_of_env("machado", PONG)
    check_protocol_of_env("as_set", EnvConfig(env="Catch-v0"))
    with pytest.raises(ValueError, match="^protocol: wanted as_set for Catch-v0, got classic$"):
        check_protocol_of_env("classic", EnvConfig(env="Catch-v0"))


@pytest.mark.parametrize("episodic_life", [True, False])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_values_decide_the_name_of_the_protocol(name: str, episodic_life: bool) -> None:
    """Evaluation plays whole games, so `episodic_life` in training does not matter."""
    config = small_config(**{**ATARI, **PROTOCOLS[name], "episodic_life": episodic_life})
    assert config.settings["protocol"] == "as_set"
    assert protocol_of(config.env, greedy=False)["protocol"] == name
    assert f"({name} " in line_of(config.env, greedy=False)


@pytest.mark.parametrize("name", PROTOCOLS["classic"])
def test_one_different_value_makes_another_protocol(name: str) -> None:
    value = PROTOCOLS["machado"][name]
    other = not value if isinstance(value, bool) else value / 2 if isinstance(value, float) else value + 1
    config = small_config(**{**ATARI, **PROTOCOLS["machado"], name: other})
    assert protocol_of(config.env, greedy=False)["protocol"] == OWN


def test_a_resumed_run_keeps_its_protocol() -> None:
    check_same_protocol({"protocol": "machado"}, {"protocol": "machado"})
    check_same_protocol({"protocol": "machado"}, {"protocol": "as_set"})
    check_same_protocol({"protocol": "as_set"}, {})  # a checkpoint from before the setting existed
    with pytest.raises(ValueError, match="^protocol: wanted machado.* got classic"):
        check_same_protocol({"protocol": "classic"}, {"protocol": "machado"})


def test_an_environment_without_an_emulator_names_no_frames() -> None:
    cartpole = EnvConfig(env="CartPole-v1", frames_stacked=1)
    protocol = protocol_of(cartpole, greedy=True)
    assert protocol == {
        "protocol": "own",
        "env": "CartPole-v1",
        "full_games": True,
        "rewards": "raw",
        "actions": "greedy",
        "action_count": 2,
        "observations": [{"name": "observation", "shape": [4], "dtype": "float32"}],
        "observations_stacked": 1,
        "version": f"gymnasium {gymnasium.__version__}",
        "max_episode_steps": 500,
        "env_args": {},
        "normalisation": "in the network",
    }
    line = line_of(cartpole, greedy=True)
    assert "frame" not in line
    assert all(word in line for word in ("CartPole-v1", gymnasium.__version__, "500 steps", "greedy", "of 2", "normalised"))


def test_a_stack_of_vectors_is_one_of_observations() -> None:
    lines = {count: line_of(EnvConfig(env="CartPole-v1", frames_stacked=count), greedy=True) for count in (1, 2)}
    assert "observation 4 float32, stack of 2 observations, " in lines[2]
    assert "stack" not in lines[1]
    assert "frame" not in lines[2]


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ("Reach-v0", "observation 2 float32, stack of 2 observations"),
        ("Masked-v0", "action_mask 6 uint8, stack of 2 observations"),
    ],
)
def test_vectors_of_a_toy_are_no_frames(env: str, shown: str) -> None:
    line = line_of(EnvConfig(env=env, frames_stacked=2), greedy=True)
    assert f"{shown}, frame skip 1, " in line
    assert "2 frames" not in line


def test_the_settings_of_an_environment_are_part_of_its_protocol() -> None:
    usual = EnvConfig(env="Pendulum-v1", frames_stacked=1)
    other = EnvConfig(env="Pendulum-v1", frames_stacked=1, max_episode_steps=50, env_args='{"g": 5.0}')
    before, after = protocol_of(usual, greedy=False), protocol_of(other, greedy=False)
    assert before["action_space"] == {"kind": "box", "low": [-2.0], "high": [2.0]}
    assert {name for name in before if before[name] != after[name]} == {"max_episode_steps", "env_args"}
