"""Plays whole episodes with a trained policy. It stores no trajectories and does not train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from learner.metrics.infos import Ends, RunningInfos, Sums
from replay.recordings.recorder import EpisodeRecorder
from workers.evaluation_policy import EvaluationPolicy
from workers.finite import check_environments, float_parts
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


def _result(step: Step, index: int, running: RunningInfos) -> EpisodeResult:
    """The episode of environment `index` that ended in this step."""
    length, truncated = int(step.episode_length[index]), bool(step.truncated[index])
    return EpisodeResult(float(step.episode_return[index]), length, truncated, index, *running.end(step.infos, index))


def divide_episodes(episodes: int, environments: int) -> np.ndarray:
    """Number of episodes for each environment, int64 `[environments]`. Episode i goes to environment i mod environments."""
    return np.bincount(np.arange(episodes) % environments, minlength=environments)


def shared_equally(environments: int, tasks: int) -> int:
    """The environments of an evaluation if each task gets as many: at least one, and no more than asked for beyond that."""
    return max(1, environments // tasks) * tasks


def play(
    env: VectorEnv,
    policy: EvaluationPolicy,
    quotas: np.ndarray,
    seed: int,
    *,
    on_episode: Callable[[EpisodeResult], None],
    on_step: Callable[[int], None],
    stop: Callable[[], bool],
    recorder: EpisodeRecorder | None = None,
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
