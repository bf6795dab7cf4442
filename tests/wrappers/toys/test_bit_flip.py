"""Bit-flip ends when the pattern is reached, and its functions agree with its steps."""

from __future__ import annotations

import numpy as np
import pytest

from wrappers import EnvConfig, make_spec, make_vector_env
from wrappers.goals import GoalRows

IDS = {"BitFlip8-v0": 8, "BitFlip15-v0": 15}


@pytest.mark.parametrize("env_id", IDS)
def test_flipping_the_wrong_bits_reaches_the_pattern(env_id: str) -> None:
    env = make_vector_env(EnvConfig(env_id, 1), 16)
    observations, bits = env.reset(1), IDS[env_id]
    returns: list[float] = []
    for _ in range(4 * bits):
        wrong = observations[:, -1, :bits] != observations[:, -1, bits:]
        step = env.step(wrong.argmax(axis=1))
        left = wrong.sum(axis=1) - 1
        np.testing.assert_array_equal(step.terminated[step.action_used], left[step.action_used] == 0)
        observations = step.observations
        returns.extend(step.episode_return[step.episode_length > 0])
    assert abs(np.mean(returns) - (1 - bits / 2)) < 1


@pytest.mark.parametrize("env_id", IDS)
def test_rewards_and_terminations_are_those_of_its_functions(env_id: str) -> None:
    env, generator = make_vector_env(EnvConfig(env_id, 1), 64), np.random.default_rng(0)
    env.reset(1)
    spec = make_spec(EnvConfig(env_id, 1))
    assert spec.goals is not None
    reward, terminated = (GoalRows(env.goal_function(name) or len, spec.goals) for name in spec.goals.functions)
    ends = 0
    for _ in range(100):
        step = env.step(env.spec.action.sample(generator, 64))
        goals = [step.observations[:, -1].view(np.uint8)[:, place].view(np.float32) for place in spec.goals.places(())]
        used = step.action_used
        np.testing.assert_array_equal(step.rewards[used], reward(*goals)[used])
        np.testing.assert_array_equal(step.terminated[used], terminated(*goals)[used])
        ends += int((step.truncated & ~step.terminated).sum())
    assert ends
