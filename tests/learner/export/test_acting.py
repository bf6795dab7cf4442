"""A policy outside of the program's environments acts as within them, on raw observations and with raw actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from learner import launch
from learner.evaluation.play import EvaluationPolicy
from learner.evaluation.test_mode import load_policy as load_evaluated
from learner.export.acting import load_policy
from learner.prepare import prepare
from learner.runs.directory import RunDirectory
from tests.learner.launching import trained
from tests.test_matrix import settings_of
from wrappers import make_single_env
from wrappers.gymnasium_vector import TranslatedEnv
from wrappers.previous import OBSERVATION, PreviousEnv
from wrappers.spaces import Box, Packing
from wrappers.spec import VectorEnv

STEPS = 12  # two episodes of the matrix


def matrix_run(results: Path, combination: str, core: str, **given: Any) -> RunDirectory:
    settings = settings_of(combination, core, **{"environment_max_steps": 16, **given}, results_dir=str(results), verbosity=0)
    assert launch.run(launch.prepare("train", settings, ["main.py"])) == 0
    return RunDirectory((results / "latest").resolve())


def within(run: RunDirectory) -> tuple[VectorEnv, EvaluationPolicy]:
    """The program's own environment and its greedy policy."""
    job = prepare("test", {"load": str(run.path), "greedy": True, "device": "cpu"}, [])
    assert job.checkpoint is not None
    return make_single_env(job.config.env), load_evaluated(job.plan, job.checkpoint, 1)


def assert_same_frames(env: VectorEnv, first: np.ndarray, second: np.ndarray) -> None:
    """Equal values: bytes would tell 0.0 from -0.0."""
    if not env.spec.leaves:
        np.testing.assert_array_equal(first, second)
        return
    ones, others = (Packing(env.spec.leaves).unpack(frames[0]) for frames in (first, second))
    for name, values in ones.items():
        np.testing.assert_array_equal(values, others[name])


@pytest.mark.parametrize(
    ("combination", "core", "given"),
    [
        ("dict-discrete-mask", "lstm", {"core_inputs": True, "frames_stacked": 2}),
        ("vector-multi-mask", "none", {"frames_stacked": 3}),
        ("image-box", "lstm", {"core_inputs": True}),
        ("dict-discrete", "none", {"agent": "dqn", "learning_starts": 4, "environment_max_steps": 60}),
    ],
)
def test_raw_observations_give_the_frames_and_actions_of_the_program(
    combination: str, core: str, given: dict[str, Any], tmp_path: Path
) -> None:
    run = matrix_run(tmp_path, combination, core, **given)
    env, evaluated = within(run)
    inner = env.env if isinstance(env, PreviousEnv) else env
    assert isinstance(inner, TranslatedEnv)
    raw, policy = gymnasium.make(f"Matrix-{combination}-v0"), load_policy(str(run.path))
    observations, (observation, _) = env.reset(1), raw.reset(seed=1)
    first, state, reward = np.ones(1, bool), None, 0.0
    for _ in range(STEPS):
        chosen = evaluated.choose(observations, first).actions.numpy()
        action, state = policy.act(observation, state, reward=reward)
        assert_same_frames(env, state.frames, observations)
        np.testing.assert_array_equal(action, inner.translation.decode(chosen)[0])
        assert raw.action_space.contains(action)
        observation, reward, terminated, truncated, _ = raw.step(action)
        step = env.step(chosen)
        assert step.rewards[0] == reward
        if terminated or truncated:
            (observation, _), state, reward = raw.reset(), None, 0.0
            step = env.step(chosen)
        observations, first = step.observations, step.reset


def shown(env: VectorEnv, observations: np.ndarray) -> Any:
    """The newest frame of environment 0 without the inputs of a core: an array, or a dict of leaves."""
    if not env.spec.leaves:
        return observations[0, -1]
    leaves = {name: value[0] for name, value in Packing(env.spec.leaves).unpack(observations[:, -1]).items()}
    leaves = {name: value for name, value in leaves.items() if not name.startswith(("previous_", "_task"))}
    return leaves.get(OBSERVATION, leaves)


@pytest.mark.parametrize(
    "given",
    [
        {"frames_stacked": 2, "core_inputs": True, "core": "gru"},
        {"env": "Reach-v0"},
        {"env": "BitFlip8-v0"},
        {"env": "Masked-v0"},
        {"env": "Catch-v0,Avoid-v0"},
        {"env": "Catch-v0,Avoid-v0", "task_input": True, "core_inputs": True, "core": "gru", "frames_stacked": 2},
    ],
)
def test_frames_of_a_family_without_a_translation_are_its_observations(given: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path, **given)
    env, evaluated = within(run)
    policy, observations, state, reward = load_policy(str(run.path)), env.reset(1), None, 0.0
    task = {"task": "Avoid-v0"} if "," in given.get("env", "") else {}  # that of the seed 1
    for index in range(5):
        chosen = evaluated.choose(observations, np.full(1, index == 0)).actions.numpy()
        action, state = policy.act(shown(env, observations), state, reward=reward, **task)
        assert_same_frames(env, state.frames, observations)
        space = env.spec.action
        np.testing.assert_array_equal(action, space.to_environment(chosen)[0] if isinstance(space, Box) else chosen[0])
        step = env.step(chosen)
        observations, reward = step.observations, float(step.rewards[0])
    with pytest.raises(ValueError, match="observation: wanted"):
        policy.act(np.zeros((2, 3, 4)))
    seen = shown(env, observations)
    if isinstance(seen, np.ndarray) and seen.dtype == np.uint8:
        with pytest.raises(ValueError, match=r"observation: wanted numbers of uint8, got others, such as \d+\.5"):
            policy.act(seen + 0.5, **task)


def test_sampling_differs_from_the_best_action_and_bad_observations_are_refused(tmp_path: Path) -> None:
    run = matrix_run(tmp_path, "vector-discrete", "none")
    policy = load_policy(str(run.path), seed=3)
    observation = np.array([1.0, 0.0, 0.0])
    assert len({policy.act(observation, greedy=False)[0] for _ in range(60)}) > 1
    assert len({policy.act(observation)[0] for _ in range(5)}) == 1
    with pytest.raises(ValueError, match=r"observation: wanted numbers of shape \(3,\)"):
        policy.act(np.zeros(4))


def test_a_policy_trained_with_counts_takes_raw_observations(tmp_path: Path) -> None:
    """The entries of this Dict are joined to one vector, whose names no caller knows."""
    run = trained(tmp_path, env="tests.goal_env:TestGoals-v0", agent="ppo", episodic_count=0.5, environment_max_steps=80)
    raw, policy = gymnasium.make("TestGoals-v0"), load_policy(str(run.path))
    observation, _ = raw.reset(seed=1)
    env, evaluated = within(run)
    observations = env.reset(1)
    action, state = policy.act(observation)
    assert raw.action_space.contains(action)
    assert_same_frames(env, state.frames, observations)
    np.testing.assert_allclose(action, evaluated.choose(observations, np.ones(1, bool)).actions[0].numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="desired_goal: wanted"):
        policy.act({**observation, "desired_goal": np.zeros(3)})


def test_a_policy_that_reads_its_task_wants_one_of_its_own(tmp_path: Path) -> None:
    policy = load_policy(str(trained(tmp_path, env="Catch-v0,Avoid-v0", task_input=True).path))
    for task in ({}, {"task": "Pong"}):
        with pytest.raises(ValueError, match="task: wanted Catch-v0 or Avoid-v0, got"):
            policy.act(np.zeros((10, 5), np.uint8), **task)
