"""Every toy follows the contract of environments, and its optimal policy has the best return."""

from __future__ import annotations

import numpy as np
import pytest

from wrappers import EnvConfig, Step, VectorEnv, make_single_env, make_spec, make_vector_env
from wrappers.spaces import ACTION_MASK, Box, Packing
from wrappers.toy import TOYS
from wrappers.toys import bandit, reach
from wrappers.toys.masked import LEAVES, PACKING

EACH = pytest.mark.parametrize("env_id", TOYS)


def make(env_id: str, num_envs: int, frames_stacked: int = 1, max_episode_frames: int = 1000) -> VectorEnv:
    return make_vector_env(EnvConfig(env_id, frames_stacked, max_episode_frames), num_envs)


def steps_of(env: VectorEnv, seed: int, count: int, actions_seed: int = 0) -> list[Step]:
    """Random play."""
    generator = np.random.default_rng(actions_seed)
    env.reset(seed)
    return [env.step(env.spec.action.sample(generator, env.num_envs)) for _ in range(count)]


@EACH
def test_observations_are_of_the_spec_and_change(env_id: str) -> None:
    env, spec = make(env_id, 3, frames_stacked=2), make_spec(EnvConfig(env_id, 2))
    assert env.spec == spec
    for step in steps_of(env, 1, 40):
        assert step.observations.shape == (3, *spec.observation_shape)
        assert step.observations.dtype == spec.frame_dtype
        assert (step.rewards.dtype, step.rewards.shape) == (np.float32, (3,))
    if spec.leaves:
        assert spec.frame_shape == (Packing(spec.leaves).size,)


@EACH
def test_an_end_is_followed_by_a_reset_that_ignores_its_action(env_id: str) -> None:
    env, ended = make(env_id, 4, frames_stacked=3), np.zeros(4, bool)
    ends = 0
    for step in steps_of(env, 5, 120):
        np.testing.assert_array_equal(step.reset, ended)
        np.testing.assert_array_equal(step.action_used, ~ended)
        assert not step.rewards[ended].any()
        assert not (step.terminated | step.truncated)[ended].any()
        assert not step.observations[ended, :-1].any(), "wanted zeros before an episode's first frame"
        ended = step.terminated | step.truncated
        np.testing.assert_array_equal(step.episode_length > 0, ended)
        np.testing.assert_array_equal(np.isfinite(step.episode_return), ended)
        ends += int(ended.sum())
    assert ends > 8


@EACH
def test_an_environment_depends_on_its_own_seed_and_actions_only(env_id: str) -> None:
    generator, together = np.random.default_rng(0), make(env_id, 3, frames_stacked=2)
    actions = [together.spec.action.sample(generator, 3) for _ in range(40)]
    together.reset(7)
    found = [together.step(row) for row in actions]
    for index in range(3):
        alone = make(env_id, 1, frames_stacked=2)
        alone.reset(7 + index)
        for row, step in zip(actions, found, strict=True):
            for field, own in zip(step, alone.step(row[index : index + 1]), strict=True):
                np.testing.assert_array_equal(None if field is None else field[index : index + 1], own)


@EACH
def test_a_second_reset_restarts_everything(env_id: str) -> None:
    env = make(env_id, 2, frames_stacked=2)
    for one, other in zip(steps_of(env, 3, 30), steps_of(env, 3, 30), strict=True):
        for field, again in zip(one, other, strict=True):
            np.testing.assert_array_equal(field, again)
    first, second = env.reset(3), env.reset(9)
    assert not np.array_equal(first, second)


@EACH
def test_a_time_limit_truncates(env_id: str) -> None:
    env = make(env_id, 64, max_episode_frames=3)
    steps = steps_of(env, 1, 3)
    running = ~np.any([step.terminated | step.reset for step in steps], axis=0)
    assert running.any()
    assert steps[2].truncated[running].all()
    assert not any(step.truncated.any() for step in steps[:2])


@EACH
def test_a_toy_can_be_shown(env_id: str) -> None:
    env = make_single_env(EnvConfig(env_id, 1), "rgb_array")
    env.reset(1)
    picture = env.render()
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
    assert picture.any()


def mean_return(env_id: str, optimal: bool) -> float:
    env = make(env_id, 32)
    policy = {"Reach-v0": reaches, "Locks-v0": opens, "Masked-v0": takes_the_best_legal}.get(env_id)
    generator, observations, returns = np.random.default_rng(0), env.reset(1), []
    for _ in range(60):
        step = env.step(policy(observations[:, -1]) if optimal and policy else env.spec.action.sample(generator, 32))
        observations = step.observations
        returns += step.episode_return[step.episode_length > 0].tolist()
    return float(np.mean(returns))


def reaches(frames: np.ndarray) -> np.ndarray:
    low, high = np.array(reach.LOW), np.array(reach.HIGH)
    return (2 * (frames - low) / (high - low) - 1).astype(np.float32)


def opens(frames: np.ndarray) -> np.ndarray:
    return np.stack([frames[:, part].argmax(1) for part in (slice(0, 3), slice(3, 7), slice(7, 9))], 1)


def takes_the_best_legal(frames: np.ndarray) -> np.ndarray:
    prizes = np.ascontiguousarray(frames[:, PACKING.parts["prizes"]]).view(np.float32)
    return np.where(frames[:, PACKING.parts[ACTION_MASK]], prizes, -1.0).argmax(1)


@pytest.mark.parametrize(("env_id", "best", "random"), [("Reach-v0", 1, -5), ("Locks-v0", 8, 1), ("Masked-v0", 8, 0)])
def test_the_optimal_policy_has_the_best_return(env_id: str, best: float, random: float) -> None:
    assert mean_return(env_id, optimal=True) == best
    assert mean_return(env_id, optimal=False) < random


def test_the_arms_of_a_bandit_pay_what_the_context_says() -> None:
    env, returns = make("Bandit-v0", 32), []
    contexts = env.reset(1)[:, -1]
    for _ in range(200):
        step = env.step((contexts @ bandit.WEIGHTS.T).argmax(1))
        means = (contexts @ bandit.WEIGHTS.T).max(1)
        assert (np.abs(step.rewards - means) < 6 * bandit.NOISE)[step.action_used].all()
        contexts = step.observations[:, -1]
        returns += step.episode_return[step.episode_length > 0].tolist()
    assert np.mean(returns) > 9
    assert abs(mean_return("Bandit-v0", optimal=False)) < 1


def test_a_policy_that_does_not_rescale_cannot_reach_in_time() -> None:
    """Actions in [-1, 1] that the environment took as they are would need several steps, which cost more than 1."""
    env = make("Reach-v0", 32)
    assert isinstance(env.spec.action, Box)
    observations, returns = env.reset(1), []
    for _ in range(200):
        moves = np.clip(observations[:, -1], -1, 1)
        step = env.step(reaches(moves))
        observations = step.observations
        returns += step.episode_return[step.episode_length > 0].tolist()
    assert np.mean(returns) < -0.5


def test_one_wrong_component_opens_no_lock() -> None:
    env = make("Locks-v0", 16)
    actions = opens(env.reset(1)[:, -1])
    actions[:8, 1] = (actions[:8, 1] + 1) % 4
    np.testing.assert_array_equal(env.step(actions).rewards, np.repeat([0.0, 1.0], 8))


def test_an_illegal_action_ends_the_episode_and_costs_one() -> None:
    env = make("Masked-v0", 16)
    legal = env.reset(1)[:, -1, PACKING.parts[ACTION_MASK]]
    assert {leaf.name for leaf in LEAVES} == {"prizes", ACTION_MASK}
    assert (legal.sum(1) == 2).all()
    step = env.step(legal.argmin(1))
    assert (step.rewards == -1).all()
    assert step.terminated.all()
    masks = [other.observations[:, -1, PACKING.parts[ACTION_MASK]] for other in steps_of(env, 1, 5)]
    assert len({mask.tobytes() for mask in masks}) == 5
