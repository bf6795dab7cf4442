"""The bonus for observations that are rare in their episode."""

from __future__ import annotations

import math

import numpy as np

from wrappers import describe_env, make_single_env, make_vector_env
from wrappers.episodic_count import EpisodicCount
from wrappers.spec import EnvConfig


def test_a_bonus_falls_with_the_visits_of_an_episode_and_returns_stay() -> None:
    """FrozenLake's observation is the square, and the wall of its first square keeps a player there."""
    config = EnvConfig(env="FrozenLake-v1", env_args='{"is_slippery": false}', frames_stacked=1, episodic_count=0.5)
    env = make_vector_env(config, 2)
    assert isinstance(env, EpisodicCount)
    env.reset(1)
    left, down, right = 0, 1, 2
    # Environment 0 stays, environment 1 falls into the hole below its right neighbour, and both begin anew together.
    steps = [
        env.step(np.array(actions)) for actions in ((left, right), (left, down), (left, left), (left, right), (right, left))
    ]
    rewards = np.array([step.rewards for step in steps])
    first, second, third = 0.5, 0.5 / math.sqrt(2), 0.5 / math.sqrt(3)
    np.testing.assert_allclose(rewards[:, 0], [second, third, 0.25, 0.5 / math.sqrt(5), first], rtol=1e-6)
    np.testing.assert_allclose(rewards[:, 1], [first, first, 0.0, first, second], rtol=1e-6)  # row 2 is the autoreset
    assert steps[1].terminated[1]
    assert steps[1].episode_return[1] == 0.0, "of the environment alone"


def test_one_of_several_environments_has_one_bonus() -> None:
    config = EnvConfig(env="CartPole-v0,CartPole-v1", frames_stacked=1, episodic_count=0.5)
    for env in (make_vector_env(config, 1), make_single_env(config)):
        env.reset(1)
        assert env.step(np.zeros(1, np.int64)).rewards[0] == 1.5  # an observation that is seen once


def test_evaluations_have_no_bonus() -> None:
    evaluated = describe_env(EnvConfig(env="CartPole-v1", frames_stacked=1, episodic_count=0.5)).evaluation_config
    assert not isinstance(make_vector_env(evaluated, 1), EpisodicCount)
