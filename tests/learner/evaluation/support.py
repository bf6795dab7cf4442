"""Networks and an environment that the tests of evaluation and export share."""

from __future__ import annotations

import numpy as np
import torch

from agents.networks.actor_critic import ActorCritic
from learner.settings.config import Config
from tests.builders import network_of
from tests.support import small_config
from wrappers import EnvSpec, Step, VectorEnv, make_spec


def new_network(config: Config, generator: torch.Generator | None = None) -> ActorCritic:
    """The network of a run before its first update."""
    spec = make_spec(config.env)
    tasks = spec.tasks if len(spec.tasks) > 1 else ()
    shape, parts = spec.observation_shape, {"leaves": spec.leaves, "tasks": tasks}
    return network_of(config.network, shape, spec.action, generator=generator, **parts)


@torch.no_grad()
def network_that_does(action: int) -> ActorCritic:
    """A network that always takes the same action in Catch: 0 is LEFT, 1 STAY, 2 RIGHT."""
    network = new_network(small_config())
    network.policy_head.weight.zero_()
    network.policy_head.bias.zero_()
    network.policy_head.bias[action] = 1e4
    return network


class TimedEpisodes(VectorEnv):
    """Environment i has episodes of `lengths[i]` steps, whose return is their length. Observations are zeros."""

    def __init__(self, lengths: list[int], spec: EnvSpec) -> None:
        self.spec = spec
        self.num_envs = len(lengths)
        self.lengths = np.array(lengths)
        self.steps = np.zeros(self.num_envs, dtype=np.int64)
        self.ended = np.zeros(self.num_envs, dtype=bool)

    def reset(self, seed: int) -> np.ndarray:
        return self._observations()

    def step(self, actions: np.ndarray) -> Step:
        reset = self.ended
        self.steps = np.where(reset, 0, self.steps + 1)
        self.ended = self.steps == self.lengths
        returns = np.where(self.ended, self.steps, np.nan).astype(np.float32)
        none = np.zeros(self.num_envs, dtype=bool)
        lengths = np.where(self.ended, self.steps, 0).astype(np.int32)
        rewards = np.ones(self.num_envs, dtype=np.float32)
        return Step(self._observations(), rewards, self.ended, none, reset, ~reset, returns, lengths)

    def _observations(self) -> np.ndarray:
        return np.zeros((self.num_envs, *self.spec.observation_shape), dtype=self.spec.frame_dtype)
