"""Plays whole episodes with a trained policy and nothing else: no trajectories, no learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from agents.networks.base import FeatureNetwork, Thought
from wrappers import VectorEnv


class EpisodeResult(NamedTuple):
    """One whole episode: raw return, length in steps, whether a time limit cut it, and the environment that played it."""

    episode_return: float
    length: int
    truncated: bool
    environment: int


class EvaluationPolicy:
    """Acts as trained, by sampling, or greedily by the most probable action. The network never learns here."""

    def __init__(self, network: FeatureNetwork, device: torch.device, *, greedy: bool, seed: int) -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._greedy = greedy
        self._generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """One action int64 `[N]` for each of `[N, S, *frame_shape]` observations."""
        output, features = self._network.think(torch.from_numpy(observations).to(self._device))
        # Actions are drawn on the CPU, so that one seed means one game on any device.
        thought = Thought(type(output)(*(tensor.cpu() for tensor in output)), features)
        return self._network.choose(thought, self._generator, greedy=self._greedy).actions.numpy()


def divide_episodes(episodes: int, environments: int) -> np.ndarray:
    """How many episodes each environment has to play, int64 `[environments]`: episode i goes to i mod environments."""
    return np.bincount(np.arange(episodes) % environments, minlength=environments)


def play(
    env: VectorEnv,
    policy: EvaluationPolicy,
    quotas: np.ndarray,
    seed: int,
    *,
    on_episode: Callable[[EpisodeResult], None],
    on_step: Callable[[int], None],
    stop: Callable[[], bool],
) -> None:
    """Play until environment i has ended `quotas[i]` episodes, or `stop` says so.

    quotas: int `[N]`. The quotas are fixed before the first step and no episode beyond them counts: if the first M
    episodes to end counted, whoever ends them, short episodes would be found too often, because an environment that
    plays short ones ends more of them in the same time. An environment whose quota is full idles: it is stepped along
    with the others, and the network is not asked for it.
    on_episode is called at the end of an episode that counts; on_step after the reset and after every step, with the
    number of environments that had something to play.
    """
    left = quotas.copy()
    observations = env.reset(seed)
    on_step(0)
    while left.any() and not stop():
        playing = np.flatnonzero(left)
        actions = np.zeros(env.num_envs, dtype=np.int64)
        actions[playing] = policy.act(observations[playing])
        step = env.step(actions)
        observations = step.observations
        for index in playing[step.episode_length[playing] > 0]:
            left[index] -= 1
            on_episode(
                EpisodeResult(
                    episode_return=float(step.episode_return[index]),
                    length=int(step.episode_length[index]),
                    truncated=bool(step.truncated[index]),
                    environment=int(index),
                )
            )
        on_step(len(playing))
