"""Plays whole episodes with a trained policy. It stores no trajectories and does not train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.base import FeatureNetwork, NetworkOutput, SampledActions
from agents.networks.cores import zeroed
from learner.metrics.infos import Ends, RunningInfos, Sums
from replay.recordings.recorder import Recorder
from workers.finite import NotFiniteError, check_environments, float_parts
from wrappers import VectorEnv
from wrappers.legal import first_actions
from wrappers.spaces import Packing
from wrappers.spec import Step


class EpisodeResult(NamedTuple):
    """One whole episode: raw return, length in steps, whether a time limit truncated it, and the index of its environment.

    infos: numbers in the info of its last step. sums: those of all its steps added up.
    """

    episode_return: float
    length: int
    truncated: bool
    environment: int
    infos: Ends = {}
    sums: Sums = {}


class EvaluationPolicy:
    """Acts as trained, by sampling, or greedily by the mode of the distribution. The network never learns here.

    epsilon: probability of a random action, for networks that explore by epsilon.
    """

    def __init__(self, network: FeatureNetwork, device: torch.device, *, greedy: bool, seed: int, epsilon: float = 0.0) -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._greedy = greedy
        self._epsilon = epsilon if network.explores_by_epsilon else None
        self._generator = torch.Generator().manual_seed(seed)
        self._states: dict[int, Tensor] = {}  # environment -> the core's state `[K]` after its last observation

    @torch.inference_mode()
    def choose(
        self, observations: np.ndarray, first: np.ndarray | None = None, environments: np.ndarray | None = None
    ) -> SampledActions:
        """One action on the CPU for each of `[N, S, *frame_shape]` observations, with the fields that are stored with it.

        Args:
            first: bool `[N]`, whether each observation is its episode's first; None for all.
            environments: int `[N]`, the environments' numbers, by which a core's state is kept; None for 0 to N - 1.

        Raises NotFiniteError: large finite weights of a policy that diverged can give infinite outputs.
        """
        count = len(observations)
        first = np.ones(count, bool) if first is None else first
        environments = np.arange(count) if environments is None else environments
        state = self._state_before(torch.from_numpy(first), environments)
        output, features, state = self._network.infer(torch.from_numpy(observations).to(self._device), state)
        if state is not None:
            self._states.update(zip(environments.tolist(), state, strict=True))
        # Actions are drawn on the CPU, so that one seed means one game on any device.
        inferred = NetworkOutput(type(output)(*(tensor.cpu() for tensor in output)), features)
        if not all(tensor.isfinite().all() for tensor in inferred.output):
            raise NotFiniteError("the policy's outputs are not finite: its training diverged")
        exploration = None if self._epsilon is None else torch.full((count, 1), self._epsilon)
        return self._network.choose(inferred, self._generator, exploration, greedy=self._greedy)

    def _state_before(self, first: Tensor, environments: np.ndarray) -> Tensor | None:
        """The core's state for these environments, `[N, K]`; None without a core."""
        if not self._network.state_size:
            return None
        begins = torch.zeros(self._network.state_size, device=self._device)
        kept = torch.stack([self._states.get(environment, begins) for environment in environments.tolist()])
        return zeroed(kept, first.to(self._device))


def _result(step: Step, index: int, running: RunningInfos) -> EpisodeResult:
    """The episode of environment `index` that ended in this step."""
    length, truncated = int(step.episode_length[index]), bool(step.truncated[index])
    return EpisodeResult(float(step.episode_return[index]), length, truncated, index, *running.end(step.infos, index))


def divide_episodes(episodes: int, environments: int) -> np.ndarray:
    """Number of episodes for each environment, int64 `[environments]`. Episode i goes to environment i mod environments."""
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
    recorder: Recorder | None = None,
) -> None:
    """Play until environment i has ended `quotas[i]` episodes, or `stop` returns true.

    Args:
        quotas: int `[N]`, number of episodes that count for each environment.
        seed: seed of environment 0.
        on_episode: is called at the end of every episode that counts.
        on_step: is called with 0 after the reset, and after every step with the number of environments that still played.
        stop: is called before every step.
        recorder: keeps the episodes that count.

    Raises NotFiniteError, which names the environment or the policy.
    """
    packing = Packing(env.spec.leaves) if env.spec.leaves else None
    # The quotas are fixed before the first step. If the first M episodes to end counted instead, short episodes would be
    # over-represented, because an environment ends more of them in the same time.
    left, running = quotas.copy(), RunningInfos(env.num_envs)
    observations, first = env.reset(seed), np.ones(env.num_envs, bool)
    on_step(0)
    while left.any() and not stop():
        playing = np.flatnonzero(left)  # the others are stepped too, with a first action, but the network skips them
        for name, values in float_parts(packing, observations[playing]):
            check_environments(name, values, playing)
        actions = first_actions(env.spec, observations)
        chosen = policy.choose(observations[playing], first[playing], playing)
        actions[playing] = chosen.actions.numpy()
        frames = observations[playing, -1]  # a copy: the environment may reuse its array
        step = env.step(actions)
        running.add(step.infos)
        observations, first = step.observations, step.reset
        ended = playing[step.episode_length[playing] > 0]
        counted = ended[np.isfinite(step.episode_return[ended])]
        if recorder:
            recorder.add(playing, frames, actions[playing], chosen.fields, step, counted)
        for index in counted:
            left[index] -= 1
            on_episode(_result(step, int(index), running))
        # The checks come last, because the other environments' episodes count although one environment fails.
        check_environments("rewards", step.rewards[playing], playing)
        check_environments("returns", step.episode_return[ended], ended)
        on_step(len(playing))
