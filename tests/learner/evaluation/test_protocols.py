"""A named protocol sets what decides a score, refuses what contradicts it, and is told from the other one."""

from __future__ import annotations

from typing import Any

import pytest

from learner.evaluation.protocol import describe_protocol, evaluation_protocol
from learner.evaluation.protocols import DECISIVE, PROTOCOLS, apply_protocol, check_same_protocol
from learner.settings.config import DEFAULTS, check_settings
from tests.support import small_config

ATARI: dict[str, Any] = {"env": "PongNoFrameskip-v4", "network": "nature", "frames_stacked": 4}


def test_machado_sets_all_that_it_prescribes() -> None:
    settings = apply_protocol({**DEFAULTS, "protocol": "machado"}, {})
    assert (settings["sticky_actions"], settings["full_action_space"], settings["episodic_life"]) == (0.25, True, False)
    assert (settings["noop_threshold"], settings["fire_reset"], settings["max_episode_frames"]) == (0, False, 108_000)
    check_settings(settings)


def test_classic_is_what_the_defaults_are() -> None:
    assert apply_protocol({**DEFAULTS, "protocol": "classic"}, {}) == {**DEFAULTS, "protocol": "classic"}


def test_as_set_changes_nothing() -> None:
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
def test_a_contradiction_is_one_line(protocol: str, given: dict[str, Any]) -> None:
    settings = apply_protocol({**DEFAULTS, "protocol": protocol, **given}, given)
    (name,) = given
    with pytest.raises(ValueError, match=rf"^{name}: wanted .*protocol={protocol} prescribes, got") as error:
        check_settings(settings)
    assert "\n" not in str(error.value)


def test_a_lost_life_may_end_training_episodes_by_the_classic_protocol() -> None:
    for episodic_life in (True, False):
        check_settings({**DEFAULTS, "protocol": "classic", "episodic_life": episodic_life})


@pytest.mark.parametrize("name", PROTOCOLS)
def test_results_are_stamped_with_the_name_whoever_set_the_values(name: str) -> None:
    config = small_config(**ATARI, **PROTOCOLS[name])
    protocol = evaluation_protocol(config.env, greedy=False)
    assert protocol["protocol"] == name
    assert f"({name})" in describe_protocol(protocol)


@pytest.mark.parametrize("name", DECISIVE)
def test_one_value_that_differs_makes_it_another_protocol(name: str) -> None:
    value = PROTOCOLS["machado"][name]
    other = not value if isinstance(value, bool) else value / 2 if isinstance(value, float) else value + 1
    config = small_config(**{**ATARI, **PROTOCOLS["machado"], name: other})
    assert evaluation_protocol(config.env, greedy=False)["protocol"] == "own"


def test_a_run_goes_on_by_its_own_protocol() -> None:
    check_same_protocol({"protocol": "machado"}, {"protocol": "machado"})
    check_same_protocol({"protocol": "machado"}, {"protocol": "as_set"})
    check_same_protocol({"protocol": "as_set"}, {})  # a checkpoint from before there was the setting
    with pytest.raises(ValueError, match="^protocol: wanted machado"):
        check_same_protocol({"protocol": "classic"}, {"protocol": "machado"})
