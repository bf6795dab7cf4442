"""Previous actions and rewards as parts of observations: those of the row before, and zeros where an episode begins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from replay.batch import stack_frames
from wrappers import EnvConfig, Step, VectorEnv, make_single_env, make_spec, make_vector_env
from wrappers.previous import PreviousEnv, encode_actions, with_previous
from wrappers.spaces import Box, Discrete, Leaf, MultiDiscrete, Packing
from wrappers.spec import EnvSpec

PLAIN = EnvConfig("Catch-v0", frames_stacked=3, max_episode_frames=7)
CONFIG = EnvConfig("Catch-v0", frames_stacked=3, max_episode_frames=7, core_inputs=True)


class Scripted(VectorEnv):
    """One environment with rewards 1, 2, 3, ... Every third step replaces the action, every fourth is an autoreset."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.num_envs, self.steps = spec, 1, 0

    def reset(self, seed: int) -> np.ndarray:
        self.steps = 0
        return self._observe()

    def step(self, actions: np.ndarray) -> Step:
        self.steps += 1
        reset, used = np.array([self.steps % 4 == 0]), np.array([self.steps % 3 != 0])
        none = np.zeros(1, bool)
        rewards = np.full(1, self.steps, np.float32)
        return Step(self._observe(), rewards, none, none, reset, used & ~reset, np.full(1, np.nan), np.zeros(1, np.int32))

    def _observe(self) -> np.ndarray:
        if not self.spec.leaves:
            return np.full((1, *self.spec.observation_shape), self.steps, self.spec.frame_dtype)
        values = {leaf.name: np.full((1, *leaf.shape), self.steps, leaf.dtype) for leaf in self.spec.leaves}
        return Packing(self.spec.leaves).pack(values)[:, None]


def test_the_spec_has_two_more_leaves() -> None:
    spec = make_spec(CONFIG)
    described = [(leaf.name, leaf.shape, leaf.dtype) for leaf in spec.leaves]
    image = ("observation", (10, 5), "uint8")
    assert described == [image, ("previous_action", (3,), "float32"), ("previous_reward", (1,), "float32")]
    assert (spec.frame_shape, spec.frame_dtype) == ((4 * 3 + 4 + 50,), "uint8")
    assert (spec.action, spec.frames_stacked) == (make_spec(PLAIN).action, 3)
    assert make_single_env(CONFIG).spec == make_vector_env(CONFIG, 2).spec == spec
    assert make_spec(PLAIN).leaves == ()


def test_each_frame_holds_the_action_and_reward_before_it() -> None:
    plain, env = make_vector_env(PLAIN, 4), make_vector_env(CONFIG, 4)
    packing, generator = Packing(env.spec.leaves), np.random.default_rng(1)
    shown, observations = plain.reset(5), env.reset(5)
    frames, resets, ended = [observations], [], 0
    wanted_action, wanted_reward = np.zeros((4, 3)), np.zeros(4)
    for _ in range(40):
        leaves = packing.unpack(observations)
        np.testing.assert_array_equal(leaves["observation"], shown)
        np.testing.assert_array_equal(leaves["previous_action"][:, -1], wanted_action)
        np.testing.assert_array_equal(leaves["previous_reward"][:, -1, 0], wanted_reward)
        actions = generator.integers(3, size=4)
        step, observed = plain.step(actions), env.step(actions)
        shown, observations = step.observations, observed.observations.copy()
        frames.append(observations)
        resets.append(observed.reset.copy())
        wanted_action = np.eye(3)[actions] * ~step.reset[:, None]
        wanted_reward = step.rewards * ~step.reset
        ended += int(step.reset.sum())
    assert ended > 8
    # The stacks are those that the learner rebuilds from the newest frames.
    newest = np.concatenate([frames[0], *(each[:, -1:] for each in frames[1:])], axis=1)
    rebuilt = stack_frames(torch.from_numpy(newest), np.stack(resets, 1), 3)
    np.testing.assert_array_equal(rebuilt.numpy(), np.stack(frames))


@pytest.mark.parametrize("leaves", [(), (Leaf("sound", (2,), "float32"), Leaf("picture", (3, 1), "uint8"))])
def test_replaced_actions_and_resets_are_zeros(leaves: tuple[Leaf, ...]) -> None:
    frame = ((Packing(leaves).size,), "uint8") if leaves else ((2,), "float32")
    env = PreviousEnv(Scripted(EnvSpec("scripted", *frame, 1, MultiDiscrete((2, 3)), leaves=leaves)))
    packing = Packing(env.spec.leaves)
    seen = [packing.unpack(env.reset(1))]
    seen += [packing.unpack(env.step(np.array([[1, 2]])).observations) for _ in range(5)]
    taken, nothing = [0, 1, 0, 0, 1], [0] * 5
    assert [each["previous_action"][0, 0].tolist() for each in seen] == [nothing, taken, taken, nothing, nothing, taken]
    assert [float(each["previous_reward"][0, 0, 0]) for each in seen] == [0, 1, 2, 3, 0, 5]
    for step, each in enumerate(seen):
        for name in [leaf.name for leaf in leaves] or ["observation"]:
            assert (each[name] == step).all()


def test_actions_become_numbers() -> None:
    assert encode_actions(np.array([2, 0]), Discrete(3)).tolist() == [[0, 0, 1], [1, 0, 0]]
    box = encode_actions(np.array([[-3.5, 0.25]], np.float32), Box((-1.0, -1.0), (1.0, 1.0)))
    assert (box.tolist(), box.dtype) == ([[-3.5, 0.25]], np.float32)
    spec = with_previous(EnvSpec("box", (2,), "float32", 1, Box((-1.0, -1.0), (1.0, 1.0))))
    assert [leaf.shape for leaf in spec.leaves] == [(2,), (2,), (1,)]


@pytest.mark.parametrize("env", ["Catch-v0", "CartPole-v1"])
def test_environments_are_closed_as_without_previous_actions(env: str) -> None:
    plain, wrapped = (make_vector_env(EnvConfig(env, core_inputs=inputs), 1) for inputs in (False, True))
    assert wrapped.needs_close == plain.needs_close == (env == "CartPole-v1")
