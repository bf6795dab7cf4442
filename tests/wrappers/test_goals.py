"""Goals are found where a frame holds them, and functions of one goal or of many give the same numbers."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.goal_env import Ending, Goals, Silent
from wrappers import EnvConfig, make_single_env, make_spec
from wrappers.goals import GoalRows, goals_of
from wrappers.gymnasium_spaces import ObservationPlan
from wrappers.spaces import Goals as Places
from wrappers.spaces import goals_from_json

GOAL = Places("", (3, 5), (5, 7), (2,), "float64")


@pytest.mark.parametrize(
    ("name", "arguments"), [("Goals", {}), ("Goals", {"view": "image"}), ("Ending", {"actions": "choices"})]
)
@pytest.mark.parametrize("stacked", [1, 3])
def test_the_places_of_goals_in_a_frame_hold_them(name: str, arguments: dict[str, str], stacked: int) -> None:
    config = EnvConfig(f"tests.goal_env:Test{name}-v0", stacked, env_args=json.dumps(arguments))
    env, spec = make_single_env(config), make_spec(config)
    assert spec == env.spec
    assert spec.goals is not None
    assert spec.goals.functions == ("compute_reward", "compute_terminated")[: 2 if name == "Ending" else 1]
    assert goals_from_json(json.loads(json.dumps(spec.to_json()))["goals"]) == spec.goals
    env.reset(3)
    step = env.step(spec.action.sample(np.random.default_rng(0), 1))
    single = env._envs[0].unwrapped  # type: ignore[attr-defined]
    newest = step.observations[0, -1].view(np.uint8)
    for place, wanted in zip(spec.goals.places(spec.leaves), (single.point, single.goal), strict=True):
        np.testing.assert_array_equal(newest[place].view(np.float32), wanted.astype(np.float32))
    rewards = GoalRows(env.goal_function("compute_reward") or len, spec.goals)(
        *(each[None] for each in (single.point, single.goal))
    )
    assert rewards == step.rewards


def test_an_environment_without_functions_names_none() -> None:
    spec = make_spec(EnvConfig("tests.goal_env:TestSilent-v0", 1))
    assert spec.goals == GOAL
    assert "goals" not in make_spec(EnvConfig("CartPole-v1", 1)).to_json()


OTHERS: dict[str, Any] = {
    "choices": spaces.Discrete(3),
    "image": spaces.Box(0, 255, (8, 8), np.uint8),
    "dict": spaces.Dict(place=spaces.Box(-1, 1, (2,))),
}


@pytest.mark.parametrize("goal", OTHERS)
def test_goals_that_are_no_vectors_are_not_named(goal: str) -> None:
    space = Silent(goal=OTHERS[goal]).observation_space
    assert goals_of(ObservationPlan(space, (), "none"), space) is None


@pytest.mark.parametrize("missing", ["observation", "achieved_goal", "desired_goal"])
def test_all_three_entries_are_wanted(missing: str) -> None:
    space = spaces.Dict({name: each for name, each in Silent().observation_space.items() if name != missing})
    assert goals_of(ObservationPlan(space, (), "none"), space) is None


def test_goals_that_the_policy_does_not_get_or_of_two_shapes_are_not_named() -> None:
    space = Silent().observation_space
    assert goals_of(ObservationPlan(space, (), "none", "achieved_goal"), space) is None
    other = spaces.Dict({**space.spaces, "desired_goal": spaces.Box(-1, 1, (3,))})
    assert goals_of(ObservationPlan(other, (), "none"), other) is None
    assert goals_of(ObservationPlan(space, (), "none"), space) == GOAL


def norm_of_all(achieved: np.ndarray, desired: np.ndarray, info: Any) -> float:
    """Wrong for many goals, without an error."""
    return float(np.linalg.norm(achieved - desired))


@pytest.mark.parametrize(
    "function", [Goals().compute_reward, Ending().compute_reward, Ending().compute_terminated, norm_of_all]
)
def test_many_goals_give_what_each_gives_alone(function: Any) -> None:
    generator = np.random.default_rng(1)
    achieved, desired = generator.uniform(-0.3, 0.3, (2, 50, 2)).astype(np.float32)
    alone = [function(*each, {}) for each in zip(achieved.astype(np.float64), desired.astype(np.float64), strict=True)]
    found = GoalRows(lambda *goals: function(*goals), GOAL)(achieved, desired)
    assert len(set(alone)) > 1
    np.testing.assert_array_equal(found, np.array(alone, np.float32))


@pytest.mark.parametrize(
    "function", [lambda achieved: 0.0, lambda *goals: "much", lambda *goals: np.zeros(3), lambda *goals: None]
)
def test_a_function_that_gives_no_number_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="wanted a function"):
        GoalRows(function, GOAL)


def test_a_wrapper_may_have_the_function() -> None:
    class Half(gymnasium.Wrapper[Any, Any, Any, Any]):
        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
            return 0.5 * self.env.get_wrapper_attr("compute_reward")(achieved, desired, info)

    from wrappers.goals import with_functions

    spec = make_spec(EnvConfig("tests.goal_env:TestSilent-v0", 1))
    found = with_functions(spec, Half(Goals()))
    assert found.goals is not None
    assert found.goals.functions == ("compute_reward",)
