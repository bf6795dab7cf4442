"""Adds the previous action and reward to the observations of any environment (`--core_inputs`).

With them a recurrent policy can relate its actions to the rewards that followed (Wang et al. 2016, arXiv:1611.05763; IMPALA,
arXiv:1802.01561, figure 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wrappers.spaces import PREVIOUS_ACTION, PREVIOUS_REWARD, ActionSpace, Box, Discrete, Leaf, MultiDiscrete, Packing
from wrappers.spec import EnvSpec, Step, VectorEnv

OBSERVATION = "observation"


def with_previous(spec: EnvSpec) -> EnvSpec:
    """The spec with two more leaves, float32 vectors: the previous action `[A]` and the previous reward `[1]`.

    A frame that had no leaves becomes the leaf `observation`. The spec names no goals: another goal would change the rewards,
    so the previous rewards would be those of another one.
    """
    leaves = spec.leaves or (Leaf(OBSERVATION, spec.frame_shape, spec.frame_dtype),)
    length = encode_actions(np.zeros((1, *spec.action.shape), spec.action.dtype), spec.action).shape[1]
    leaves = (*leaves, Leaf(PREVIOUS_ACTION, (length,), "float32"), Leaf(PREVIOUS_REWARD, (1,), "float32"))
    return replace(spec, leaves=leaves, frame_shape=(Packing(leaves).size,), frame_dtype="uint8", goals=None)


def encode_actions(actions: np.ndarray, space: ActionSpace) -> np.ndarray:
    """Actions `[N, *shape]` as float32 `[N, A]`: one-hot for each choice, numbers as they are."""
    if isinstance(space, Box):
        return actions.astype(np.float32)
    if isinstance(space, Discrete):
        return np.eye(space.count, dtype=np.float32).take(actions, axis=0)
    assert isinstance(space, MultiDiscrete)
    parts = [np.eye(count, dtype=np.float32)[actions[:, index]] for index, count in enumerate(space.counts)]
    return np.concatenate(parts, axis=1)


class FrameStacks:
    """The stacks of N environments whose frames have leaves. spec: with the leaves."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._packing = Packing(spec.leaves)
        self._observations = np.zeros((num_envs, *spec.observation_shape), np.uint8)

    def clear(self, reset: np.ndarray) -> None:
        """Set the stacks to zeros where `reset`, bool `[N]`, says that an episode begins with the next frame."""
        self._observations[reset] = 0

    def push(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Push a frame of these leaves, `[N, *shape]` each, and return a copy of the stacks, uint8 `[N, S, bytes]`."""
        self._observations[:, :-1] = self._observations[:, 1:].copy()
        self._observations[:, -1] = self._packing.pack(values)
        return self._observations.copy()


class PreviousEnv(VectorEnv):
    """Environments whose observations hold the previous action and raw reward. Each stacked frame has its own pair.

    Both are zeros in an episode's first observation. The action is zeros where the environment replaced it.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.spec = with_previous(env.spec)
        self.num_envs = env.num_envs
        self.needs_close = env.needs_close
        self._inner = Packing(env.spec.leaves) if env.spec.leaves else None
        self._stacks = FrameStacks(self.spec, self.num_envs)
        (self._no_action,) = (leaf.shape for leaf in self.spec.leaves if leaf.name == PREVIOUS_ACTION)

    def reset(self, seed: int) -> np.ndarray:
        observations = self.env.reset(seed)
        self._stacks.clear(np.ones(self.num_envs, bool))
        return self._push(observations, np.zeros((self.num_envs, *self._no_action)), np.zeros(self.num_envs))

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        taken = encode_actions(actions, self.spec.action) * step.action_used[:, None]
        self._stacks.clear(step.reset)
        rewards = np.where(step.reset, 0.0, step.rewards)
        return step._replace(observations=self._push(step.observations, taken, rewards))

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _push(self, observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Push the newest frame into the stacks, and return a copy of them, `[N, S, bytes]`.

        observations: `[N, S, *frame_shape]` of the environment. actions: `[N, A]`. rewards: `[N]`.
        """
        newest = observations[:, -1]
        values = self._inner.unpack(newest) if self._inner else {OBSERVATION: newest}
        return self._stacks.push({**values, PREVIOUS_ACTION: actions, PREVIOUS_REWARD: rewards[:, None]})
