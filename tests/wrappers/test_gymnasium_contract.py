"""Environments that return something unusual work, or one line says what is unusual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from wrappers.gymnasium_contract import ContractError
from wrappers.gymnasium_env import check_first_step, find, make_single, make_vector
from wrappers.spec import EnvConfig

Returned = Callable[[Any], Any]


class Odd(gymnasium.Env[Any, Any]):
    """Returns what the functions `stepped` and `begun` make of usual values."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    stepped: Returned = staticmethod(lambda values: values)
    begun: Returned = staticmethod(lambda values: values)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.begun((np.zeros(self.observation_space.shape, self.observation_space.dtype), {}))

    def step(self, action: Any) -> Any:
        return self.stepped((np.zeros(self.observation_space.shape, self.observation_space.dtype), 1.0, False, False, {}))


gymnasium.register("Odd-v0", Odd)
gymnasium.register("OddLimited-v0", Odd, max_episode_steps=9)


def first_step(env: str = "Odd-v0") -> Any:
    config = EnvConfig(env, frames_stacked=1)
    check_first_step(make_single(config, None), env)
    return check_first_step(make_vector(config, 2, 1), env)


def stepping(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Let a step return other values, by their places in it."""
    places = ("observation", "reward", "terminated", "truncated", "info")
    monkeypatch.setattr(
        Odd, "stepped", staticmethod(lambda values: tuple(changed.get(name, v) for name, v in zip(places, values, strict=True)))
    )


@pytest.mark.parametrize("reward", [np.array([2.0]), np.array([[2]]), [2.0], np.float64(2), Fraction(2), 2])
def test_a_reward_of_one_value_is_a_number(reward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, reward=reward)
    assert first_step().rewards.tolist() == [2.0, 2.0]
    loop = make_vector(EnvConfig("Odd-v0", frames_stacked=1), 2, 1)
    loop.reset(1)
    assert [loop.step(np.zeros(2, int)).rewards.tolist() for _ in range(3)] == [[2.0, 2.0]] * 3


@pytest.mark.parametrize("end", [True, np.True_, 1, np.array([True]), np.array(1.0)])
def test_an_end_of_one_value_is_a_truth_value(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, terminated=end)
    assert first_step().terminated.tolist() == [True, True]


@pytest.mark.parametrize("info", [None, [], "none"])
def test_an_info_that_is_no_dict_is_empty(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, info=info)
    assert first_step().rewards.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"reward": np.array([1.0, 2.0])}, ("reward", "(2,)")),
        ({"reward": None}, ("reward", "None")),
        ({"reward": "1.0"}, ("reward", "'1.0'")),
        ({"reward": 1j}, ("reward", "1j")),
        ({"reward": np.nan}, ("reward", "nan")),
        ({"reward": {"a": 1.0}}, ("reward", "dict")),
        ({"terminated": None}, ("terminated", "None")),
        ({"truncated": "no"}, ("truncated", "'no'")),
        ({"terminated": np.array([True, False])}, ("terminated", "(2,)")),
        ({"observation": np.zeros(1)}, ("observation", "(3,)", "(1,)")),
        ({"observation": np.zeros((3, 1))}, ("observation", "(3,)", "(3, 1)")),
        ({"observation": None}, ("observation", "None")),
        ({"observation": np.array([0, np.inf, 0])}, ("observation", "inf")),
    ],
)
def test_a_step_against_the_contract_is_one_line(
    changed: dict[str, Any], named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepping(monkeypatch, **changed)
    with pytest.raises(ValueError, match="^env Odd-v0: ") as caught:
        first_step()
    assert all(name in str(caught.value) for name in named)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env", ["Odd-v0", "OddLimited-v0"])  # the wrapper of the time limit unpacks five values
@pytest.mark.parametrize(("values", "count"), [((0,), "six"), ((), "four")])
def test_another_number_of_values_is_named(
    env: str, values: tuple[int, ...], count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "stepped", staticmethod(lambda five: five + values if values else five[:4]))
    with pytest.raises(ValueError, match=f"^env {env}: step: wanted five values .*, got {count}"):
        first_step(env)


@pytest.mark.parametrize("begun", [lambda two: two[0], lambda two: (two[0], 1), lambda two: (*two, 1), lambda _: np.zeros(2)])
def test_a_reset_without_info_is_one_line(begun: Returned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "begun", staticmethod(begun))
    with pytest.raises(ValueError, match="^env Odd-v0: reset: wanted an observation and a dict of info, got "):
        first_step()


def test_brightness_is_no_image_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "observation_space", spaces.Box(0, 255, (6, 6, 3), np.uint8))
    stepping(monkeypatch, observation=np.full((6, 6, 3), 0.5))
    with pytest.raises(ValueError, match=r"^env Odd-v0: observation: .*, got float64 from 0\.5 to 0\.5"):
        first_step()
    stepping(monkeypatch, observation=np.full((6, 6, 3), 7.0))
    assert first_step().observations.max() == 7


def test_a_later_step_against_the_contract_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_vector(EnvConfig("Odd-v0", frames_stacked=1), 2, 1)
    loop.reset(1)
    loop.step(np.zeros(2, int))
    stepping(monkeypatch, reward=np.ones(2))
    with pytest.raises(ContractError, match=r"^reward: wanted a number, got .*\(2,\)"):
        loop.step(np.zeros(2, int))


class Agents:
    """Looks like an environment of PettingZoo."""

    metadata: dict[str, Any] = {}
    possible_agents = ("hunter", "prey")


@pytest.mark.parametrize(("made", "named"), [(Agents, ("PettingZoo", "hunter, prey")), (Fraction, ("fractions.Fraction",))])
def test_another_interface_is_named(made: Any, named: tuple[str, ...]) -> None:
    gymnasium.register("OddInterface-v0", made)
    try:
        with pytest.raises(ValueError, match="^env: wanted OddInterface-v0 to be a gymnasium.Env") as caught:
            make_vector(EnvConfig("OddInterface-v0"), 1, 1)
    finally:
        del gymnasium.registry["OddInterface-v0"]
    assert all(name in str(caught.value) for name in named)


def test_a_space_that_is_not_gymnasiums_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "action_space", Fraction(1))
    with pytest.raises(ValueError, match="^env Odd-v0: wanted action_space to be .*, got one of fractions.Fraction"):
        first_step()


def test_an_id_that_is_registered_with_gym_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("gym.envs.registration")
    module.registry = {"Old-v0": None}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gym.envs.registration", module)
    with pytest.raises(ValueError, match="^env: wanted an id registered with gymnasium, got 'Old-v0'.*GymV26Environment"):
        find("tests.wrappers.environments:Old-v0")
