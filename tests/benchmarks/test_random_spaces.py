"""Random spaces are translated and stepped, or refused in one line."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.fuzzed_environments import RANDOM_SPACES
from wrappers import EnvConfig, gymnasium_env
from wrappers.spaces import ACTION_SPACES, ActionSpace


def try_spaces(number: int) -> tuple[type[ActionSpace], bool] | str:
    """The kind of actions and whether a frame has several leaves, after 20 steps; or the refusal."""
    config = EnvConfig(env=RANDOM_SPACES, frames_stacked=1 + number % 2, env_args=json.dumps({"number": number}))
    try:
        env = gymnasium_env.make_vector(config, 2, 1)
    except ValueError as error:
        return str(error)
    generator = np.random.default_rng(number)
    env.reset(1)
    for _ in range(20):
        step = env.step(env.spec.action.sample(generator, 2))
        assert step.observations.shape == (2, *env.spec.observation_shape)
        assert step.observations.dtype == env.spec.frame_dtype
    return type(env.spec.action), bool(env.spec.leaves)


def test_spaces_of_every_kind_are_stepped_or_refused_in_one_line() -> None:
    outcomes = [try_spaces(number) for number in range(60)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert 0 < len(refusals) < 30
    assert all("\n" not in line and "wanted" in line and "got" in line for line in refusals)
    stepped = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    assert {kind for kind, _ in stepped} == set(ACTION_SPACES.values())
    assert {has_leaves for _, has_leaves in stepped} == {True, False}
