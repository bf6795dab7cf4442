"""The evaluation process: its priority, its games, and observations that cannot be shown as pictures."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from learner.evaluation import evaluator_process
from learner.evaluation.evaluator_process import CLOCK, LOWEST_PRIORITY, Answer, EvaluationLoop, EvaluatorSetup
from replay.slot_store import SharedArrays
from replay.trajectory import Field
from tests.builders import network_of
from tests.learner.evaluation.support import TimedEpisodes
from workers.weights import SharedWeights, weights_layout
from wrappers import ENVIRONMENTS, EnvConfig, EnvDescription, EnvSpec, VectorEnv, make_spec
from wrappers.spaces import Discrete


def test_without_idle_scheduling_the_process_is_only_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    nice: list[int] = []

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    evaluator_process._take_lowest_priority()
    assert nice == [LOWEST_PRIORITY]


def make_loop(spec: EnvSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EvaluationLoop:
    """The loop of a family whose episodes have observations of `spec` and two steps each."""

    def make_vector(config: EnvConfig, num_envs: int, num_threads: int) -> VectorEnv:
        return TimedEpisodes([2] * num_envs, spec)

    def make_single(config: EnvConfig, render_mode: str | None) -> VectorEnv:
        raise ValueError("render: wanted a mode, got none")

    family = SimpleNamespace(
        matches=lambda env_id: env_id == spec.env,
        make_spec=lambda config: spec,
        describe=EnvDescription,
        make_vector=make_vector,
        make_single=make_single,
    )
    monkeypatch.setitem(ENVIRONMENTS, "fake", family)
    return loop_of(spec, EnvConfig(env=spec.env), folder)


def loop_of(spec: EnvSpec, config: EnvConfig, folder: Path) -> EvaluationLoop:
    tasks = spec.tasks if len(spec.tasks) > 1 else ()
    network = network_of("mlp", spec.observation_shape, spec.action, leaves=spec.leaves, tasks=tasks)
    shared = SharedArrays({**weights_layout(network), CLOCK: Field((1,), "float64")})
    SharedWeights(shared).publish(network, 1)
    setup = EvaluatorSetup(
        env=config,
        network=network.config,
        episodes=5,
        environments=2,
        greedy=False,
        seed=1,
        animation=folder / "evaluation.gif",
    )
    return EvaluationLoop(setup, shared)


@pytest.mark.parametrize(
    ("frame_shape", "dtype", "animated"),
    [
        ((10, 8), "uint8", True),
        ((10, 8, 3), "uint8", True),
        ((10, 8, 4), "uint8", False),
        ((10, 8), "float32", False),
        ((4,), "float32", False),
        ((4,), "uint8", False),
    ],
)
def test_only_observations_that_are_images_are_animated(
    frame_shape: tuple[int, ...], dtype: str, animated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Fake-v0", frame_shape, dtype, 1, Discrete(2, ("NOOP", "MOVE")))
    loop = make_loop(spec, tmp_path, monkeypatch)
    answer = loop.evaluate(10, stop=lambda: False)
    np.testing.assert_array_equal(answer.returns, [2.0] * 5)
    assert answer.animated is animated
    assert (tmp_path / "evaluation.gif").exists() is animated


def test_a_number_that_is_not_finite_costs_one_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Fake-v0", (4,), "float32", 1, Discrete(2, ("NOOP", "MOVE")))
    loop = make_loop(spec, tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(TimedEpisodes, "_observations", lambda self: np.full((self.num_envs, 1, 4), np.nan, np.float32))
        answer = loop.evaluate(1234, stop=lambda: False)
    assert answer.returns == ()
    assert "1,234" in answer.problem
    assert "environment 0" in answer.problem
    assert loop.evaluate(1235, stop=lambda: False) == Answer((2.0,) * 5)


def test_a_full_disk_loses_the_animation_but_not_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Fake-v0", (10, 8), "uint8", 1, Discrete(2, ("NOOP", "MOVE")))
    loop = make_loop(spec, tmp_path / "missing folder", monkeypatch)
    answer = loop.evaluate(10, stop=lambda: False)
    assert (len(answer.returns), answer.animated) == (5, False)


class Undrawable(TimedEpisodes):
    """Cannot be drawn. renderings: how often it was tried."""

    renderings = 0

    def render(self) -> np.ndarray:
        type(self).renderings += 1
        raise RuntimeError("no GL context")


def test_an_environment_that_cannot_be_drawn_ends_the_animations_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("Fake-v0", (4,), "float32", 1, Discrete(2, ("NOOP", "MOVE")))
    monkeypatch.setattr(evaluator_process, "make_rendered_env", lambda config: Undrawable([2], spec))
    monkeypatch.setattr(Undrawable, "renderings", 0)
    loop = make_loop(spec, tmp_path, monkeypatch)
    answer = loop.evaluate(10, stop=lambda: False)
    assert (answer.returns, answer.animated) == ((2.0,) * 5, False)
    assert "RuntimeError: no GL context" in answer.problem
    assert loop.evaluate(20, stop=lambda: False) == Answer((2.0,) * 5)
    assert Undrawable.renderings == 1


def test_observations_that_are_no_images_are_animated_by_rendering(tmp_path: Path) -> None:
    config = EnvConfig(env="CartPole-v1", frames_stacked=1, max_episode_steps=30)
    loop = loop_of(make_spec(config), config, tmp_path)
    answer = loop.evaluate(10, stop=lambda: False)
    assert (len(answer.returns), answer.animated) == (5, True)
    with Image.open(tmp_path / "evaluation.gif") as animation:
        assert animation.size == (300, 200)
    assert loop.evaluate(20, stop=lambda: False).animated is False  # too soon for another one


def test_each_task_has_its_mean_return(tmp_path: Path) -> None:
    config = EnvConfig(env="Catch-v0,Avoid-v0", frames_stacked=1)
    answer = loop_of(make_spec(config), config, tmp_path).evaluate(10, stop=lambda: False)
    of_catch, of_avoid = ([each for each in answer.returns if (abs(each) == 1) == small] for small in (True, False))
    assert (len(of_catch), len(of_avoid), answer.animated) == (3, 2, True)
    assert answer.task_means == (np.mean(of_catch), np.mean(of_avoid))
