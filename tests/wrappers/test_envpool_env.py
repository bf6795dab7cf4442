"""EnvPool's environments follow the contract, and end and start as Gymnasium's own do."""

from __future__ import annotations

import warnings
from ctypes.util import find_library
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from wrappers import EnvConfig, describe_env, family_of, make_single_env, make_spec, make_vector_env
from wrappers.served import spaces_of
from wrappers.spaces import Box

# The package itself is not imported here: `wrappers.drawing.load_egl` comes before its first import.
pytestmark = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is an optional package (requirements-envs.txt)")

CARTPOLE = EnvConfig(env="envpool:CartPole-v1", frames_stacked=1)


def test_the_family_and_the_spec_are_those_of_the_id() -> None:
    assert family_of("envpool:Ant-v5") == "envpool"
    spec = make_spec(EnvConfig(env="envpool:Ant-v5", frames_stacked=1))
    assert (spec.frame_shape, spec.frame_dtype, spec.action) == ((105,), "float32", Box((-1.0,) * 8, (1.0,) * 8))
    assert describe_env(EnvConfig(env="envpool:Ant-v5", frames_stacked=1)).protocol_settings["max_episode_steps"] == 1000


def test_clients_send_what_its_policies_read() -> None:
    """EnvPool's observations are float32, where Gymnasium's own Ant has float64."""
    spaces = spaces_of(EnvConfig(env="envpool:Ant-v5", frames_stacked=1))
    assert isinstance(spaces.observation, gymnasium.spaces.Box)
    assert (spaces.observation.shape, spaces.observation.dtype) == ((105,), np.float32)


def test_nothing_is_printed_about_the_precision_of_bounds() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_vector_env(CARTPOLE, 2).reset(5)
    assert [str(warning.message) for warning in caught] == []


def test_each_step_is_that_of_gymnasiums_own_environment() -> None:
    env, own = make_vector_env(CARTPOLE, 2), gymnasium.make("CartPole-v1").unwrapped
    own.reset(seed=1)
    observation = env.reset(5)[1, 0]
    ends = 0
    for action in np.random.default_rng(1).integers(2, size=200):
        own.state = observation.astype(np.float64)  # type: ignore[attr-defined]
        expected, reward, terminated, _, _ = own.step(int(action))
        step = env.step(np.full(2, action))
        assert bool(step.action_used[1]) is not bool(step.reset[1])
        if not step.reset[1]:
            np.testing.assert_allclose(step.observations[1, 0], expected, atol=1e-5)
            assert (float(step.rewards[1]), bool(step.terminated[1])) == (reward, terminated)
        else:
            assert (float(step.rewards[1]), bool(step.terminated[1])) == (0.0, False)
            assert np.abs(step.observations[1, 0]).max() <= 0.05  # an episode's first observation
        ends += bool(step.terminated[1])
        observation = step.observations[1, 0]
        own.steps_beyond_terminated = None  # type: ignore[attr-defined]
    assert ends >= 5


@pytest.mark.parametrize("limit", [4, 7])
def test_the_time_limit_truncates_as_gymnasiums_does(limit: int) -> None:
    env = make_vector_env(EnvConfig(env="envpool:CartPole-v1", frames_stacked=1, max_episode_steps=limit), 2)
    env.reset(1)
    steps = [env.step(np.full(2, t % 2)) for t in range(limit + 1)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * (limit - 1) + [[True] * 2, [False] * 2]
    assert not any(step.terminated.any() for step in steps)
    assert steps[-1].reset.all()
    assert steps[-2].episode_length.tolist() == [limit] * 2


def test_an_environment_depends_on_its_own_seed_only_and_repeats_it() -> None:
    alone, together = make_vector_env(CARTPOLE, 1), make_vector_env(CARTPOLE, 3, num_threads=2)
    for _ in range(2):
        np.testing.assert_array_equal(alone.reset(9), together.reset(7)[2:])
        for action in (0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0):
            one, three = alone.step(np.full(1, action)), together.step(np.full(3, action))
            np.testing.assert_array_equal(one.observations, three.observations[2:])


@pytest.mark.parametrize(("env", "arguments", "said"), [("Nix-v5", "{}", "Nix-v5"), ("CartPole-v1", '{"nix": 1}', "nix")])
def test_what_envpool_does_not_know_is_one_line(env: str, arguments: str, said: str) -> None:
    with pytest.raises(ValueError, match="env: wanted") as caught:
        make_spec(EnvConfig(env=f"envpool:{env}", frames_stacked=1, env_args=arguments))
    assert said in str(caught.value)


def test_a_rendered_environment_shows_a_picture() -> None:
    env = make_single_env(CARTPOLE, "rgb_array")
    env.reset(1)
    assert env.render().shape == (400, 600, 3)


def test_mujoco_of_envpool_is_drawn_with_the_system_s_egl_or_the_line_names_its_package() -> None:
    """Also after environments that draw nothing were made."""
    hopper = EnvConfig(env="envpool:Hopper-v5", frames_stacked=1)
    make_vector_env(hopper, 1).close()
    if find_library("EGL") is None:
        with pytest.raises(ValueError, match="libegl1"):
            make_single_env(hopper, "rgb_array")
    else:
        env = make_single_env(hopper, "rgb_array")
        env.reset(1)
        assert env.render().std() > 0
