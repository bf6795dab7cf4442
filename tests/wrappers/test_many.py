"""Several environments as the tasks of one run: each plays as it does alone, and every observation says which task it is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay.batch import stack_frames
from wrappers import EnvConfig, Step, VectorEnv, describe_env, env_notes, make_single_env, make_spec, make_vector_env
from wrappers.infos import MOST_NAMES, Infos
from wrappers.many import ManyEnv
from wrappers.spaces import Discrete, Packing
from wrappers.spec import EnvSpec

CONFIG = EnvConfig("Catch-v0,Avoid-v0", frames_stacked=3, max_episode_frames=7, task_input=True)
TASKS = ("Catch-v0", "Avoid-v0")


def test_the_spec_has_leaves_for_the_task() -> None:
    spec = make_spec(CONFIG)
    described = [(leaf.name, leaf.shape, leaf.dtype) for leaf in spec.leaves]
    image = ("observation", (10, 5), "uint8")
    assert described == [image, ("_task", (1,), "uint8"), ("_task_input", (2,), "float32")]
    assert (spec.tasks, spec.frame_shape, spec.action) == (TASKS, (50 + 1 + 8,), Discrete(3))
    assert make_vector_env(CONFIG, 1).spec == make_vector_env(CONFIG, 3).spec == make_single_env(CONFIG).spec == spec
    assert [leaf.name for leaf in make_spec(EnvConfig(CONFIG.env)).leaves] == ["observation", "_task"]


@pytest.mark.parametrize("first", [0, 3])
def test_each_environment_plays_its_task_as_it_does_alone(first: int) -> None:
    env = make_vector_env(CONFIG, 5, first=first)
    playing = (first + np.arange(5)) % 2
    alone = [make_vector_env(task, int((playing == index).sum())) for index, task in enumerate(CONFIG.tasks)]
    packing, generator = Packing(env.spec.leaves), np.random.default_rng(1)
    observations, shown = env.reset(7), [each.reset(7) for each in alone]
    frames, resets = [observations], []
    for _ in range(30):
        leaves = packing.unpack(observations)
        np.testing.assert_array_equal(leaves["_task"][:, -1, 0], playing)
        np.testing.assert_array_equal(leaves["_task_input"][:, -1], np.eye(2)[playing])
        actions = generator.integers(3, size=5)
        step, steps = env.step(actions), [each.step(actions[playing == index]) for index, each in enumerate(alone)]
        for index in range(2):
            np.testing.assert_array_equal(leaves["observation"][playing == index], shown[index])
            for name in ("rewards", "terminated", "truncated", "reset", "action_used", "episode_return", "episode_length"):
                np.testing.assert_array_equal(getattr(step, name)[playing == index], getattr(steps[index], name), name)
        observations, shown = step.observations, [each.observations for each in steps]
        frames.append(observations)
        resets.append(step.reset)
    # The learner stacks frames again, and sees what the policy saw, also where an episode begins.
    assert np.stack(resets).any()
    rows = np.concatenate([frames[0], np.stack([each[:, -1] for each in frames[1:]], 1)], 1)  # [N, S + T, bytes]
    stacked = stack_frames(torch.from_numpy(rows), np.stack(resets, 1), 3)
    np.testing.assert_array_equal(stacked.numpy(), np.stack(frames))


def test_a_single_environment_plays_the_task_of_its_seed() -> None:
    env = make_single_env(CONFIG, "rgb_array")
    for seed in (4, 5, 7, 6):
        leaves = Packing(env.spec.leaves).unpack(env.reset(seed))
        assert leaves["_task"][0, -1, 0] == seed % 2
        (alone,) = [make_single_env(CONFIG.tasks[seed % 2], "rgb_array")]
        np.testing.assert_array_equal(leaves["observation"], alone.reset(seed))
        np.testing.assert_array_equal(env.render(), alone.render())


def test_the_whole_is_described_by_its_parts() -> None:
    described = describe_env(CONFIG)
    assert described.evaluation_config == CONFIG
    games = EnvConfig("PongNoFrameskip-v4,BreakoutNoFrameskip-v4", full_action_space=True)
    described = describe_env(games)
    assert (described.evaluation_config.env, described.evaluation_config.episodic_life) == (games.env, False)
    assert make_spec(games).action == Discrete(18)
    limits = describe_env(EnvConfig("CartPole-v0,CartPole-v1", frames_stacked=1)).protocol_text
    assert not any("at most" in phrase for phrase in limits)  # 200 steps, and 500
    assert any(
        "at most 500 steps" in phrase for phrase in describe_env(EnvConfig("CartPole-v1", frames_stacked=1)).protocol_text
    )
    assert env_notes(EnvConfig("Catch-v0", task_input=True), ()) == ["task_input is not used with one environment"]


@pytest.mark.parametrize(
    ("env", "given", "words"),
    [
        ("Catch-v0,Catch-v0", {}, ("different environments", "Catch-v0 2 times")),
        ("Catch-v0,Cacth-v0", {}, ("did you mean Catch-v0",)),
        ("Catch-v0,", {}, ("an empty one in 'Catch-v0,'",)),
        ("Catch-v0,Reach-v0", {}, ("observations", "10, 5", "Catch-v0", "Reach-v0")),
        ("BitFlip8-v0,BitFlip15-v0", {}, ("observations", "16", "30")),
        ("Catch-v0,PongNoFrameskip-v4", {}, ("one family", "Catch-v0 (toy)", "PongNoFrameskip-v4 (atari)")),
        ("PongNoFrameskip-v4,BreakoutNoFrameskip-v4", {}, ("actions", "6", "4", "Breakout")),
        (
            "served:a,served:b",
            {"spaces": '{"observation": {"type": "discrete", "n": 2}, "action": {"type": "discrete", "n": 2}}'},
            (),
        ),
    ],
)
def test_environments_that_do_not_go_together_are_refused_in_one_line(
    env: str, given: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r"^env: wanted") as refused:
        make_spec(EnvConfig(env, frames_stacked=1, **given))
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


class Reporting(VectorEnv):
    """Environments that report numbers under these names, in this order."""

    def __init__(self, names: tuple[str, ...], count: int) -> None:
        self.spec, self.num_envs, self.names = EnvSpec("Any-v0", (2,), "float32", 1, Discrete(2)), count, names

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((self.num_envs, 1, 2), np.float32)

    def step(self, actions: np.ndarray) -> Step:
        none = np.zeros(self.num_envs, bool)
        values = np.full((self.num_envs, MOST_NAMES), np.nan)
        values[:, : len(self.names)] = [len(name) for name in self.names]
        infos = Infos(self.names, values) if self.names else None
        numbers = np.zeros(self.num_envs, np.float32)
        return Step(self.reset(1), numbers, none, none, none, ~none, numbers, numbers.astype(np.int32), infos)


def test_numbers_of_one_name_share_a_column() -> None:
    names = {"a-v0": (), "b-v0": ("x", "yy"), "c-v0": ("zzz", "x")}
    env = ManyEnv(EnvConfig("a-v0,b-v0,c-v0"), 4, 0, lambda task, count: Reporting(names[task.env], count))
    env.reset(1)
    infos = env.step(np.zeros(4, np.int64)).infos
    assert infos is not None
    assert infos.names == ("x", "yy", "zzz")
    nan = np.nan
    np.testing.assert_array_equal(infos.values[:, :3], [[nan] * 3, [1, 2, nan], [1, nan, 3], [nan] * 3])
