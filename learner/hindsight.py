"""Whether a run can learn in hindsight, and the goals of its environment as the replays use them."""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np

from learner.plan import Plan
from replay import GoalAccess
from replay.base import GoalFunction
from setting import listed
from workers.base import NO_RECORDING
from workers.failures import failures_of
from wrappers import close_if_needed, make_single_env
from wrappers.answering import START_SECONDS, awaited
from wrappers.goals import ENTRIES, REWARD, TERMINATED, GoalRows
from wrappers.spaces import Goals
from wrappers.spec import FAILURES, VectorEnv


def check_hindsight(plan: Plan) -> None:
    """Raise ValueError in one line if a replay has `hindsight` and the run cannot learn so."""
    config = plan.config
    replays = [each for each in config.replays if each.hindsight]
    if not replays:
        return
    agent, window = f"agent {config.agent}", config.needs.window
    if not window:
        raise ValueError(
            f"hindsight: wanted an agent that learns from single steps, got {agent}, which learns from trajectories"
        )
    if window > 1:
        raise ValueError(f"n_step: wanted 1 with hindsight, which changes the goal of single steps, got {window}")
    if config.workers.recording != NO_RECORDING or config.needs.recorded:
        raise ValueError(f"recording: wanted {NO_RECORDING} with hindsight, got {config.workers.recording}")
    for name, wanted, value in (
        ("core_inputs", "false", config.env.core_inputs),
        ("episodic_count", "0", config.env.episodic_count),
        ("compress_replay", "false", config.replay_settings.compress_replay),
    ):
        if value:
            raise ValueError(f"{name}: wanted {wanted} with hindsight, got {str(value).lower()}")
    _check_goals(plan, sorted({each.reward_function for each in replays}))


def _check_goals(plan: Plan, names: list[str]) -> None:
    """Raise ValueError unless the environment names goals, and their rewards are known. names: the replays' own functions."""
    config, spec = plan.config, plan.spec
    if spec.goals is None:
        raise ValueError(
            f"hindsight: wanted observations that are a Dict of {listed(ENTRIES, 'and')}, with vectors of one shape as "
            f"goals, got observations of shape {spec.observation_shape} from {config.env.env}"
        )
    if len(names) > 1:
        raise ValueError(
            f"reward_function: wanted the same in all replays with hindsight, got {listed(map(repr, names), 'and')}"
        )
    if names[0]:
        _own_function(names[0], spec.goals)
    elif REWARD not in spec.goals.functions:
        raise ValueError(
            f"hindsight: wanted an environment with {REWARD}, or reward_function in replay_parameters, got {config.env.env} "
            "without either"
        )


class OpenGoals:
    """The goals of a run's environment. The process holds one environment, whose functions compute rewards of other goals.

    access: see ReplayContext. Raises WorkerError in one line if the environment cannot be made or its function fails.
    """

    def __init__(self, plan: Plan) -> None:
        config, spec = plan.config, plan.spec
        self._env: VectorEnv | None = None
        self.access: GoalAccess | None = None
        names = [each.reward_function for each in config.replays if each.hindsight]
        if not names:
            return
        assert spec.goals is not None
        with failures_of(f"{config.env.env}, whose {REWARD} hindsight calls,"):
            self._env = make_single_env(config.env)
            self._env.reset(1)
            reward = _own_function(names[0], spec.goals) if names[0] else self._function(REWARD, spec.goals)
            reward = _failing_in_one_line(names[0] or REWARD, reward)
            terminated = None
            if TERMINATED in spec.goals.functions:
                terminated = _failing_in_one_line(TERMINATED, self._function(TERMINATED, spec.goals))
        self.access = GoalAccess(*spec.goals.places(spec.leaves), reward, terminated)

    def close(self) -> None:
        """Close the environment. May be called twice."""
        env, self._env = self._env, None
        if env:
            close_if_needed(env)

    def _function(self, name: str, goals: Goals) -> GoalFunction:
        assert self._env is not None
        function = self._env.goal_function(name)
        assert function is not None
        return GoalRows(function, goals)


def _failing_in_one_line(name: str, function: GoalFunction) -> GoalFunction:
    """The function, whose failures end the run as those of an environment in this process."""

    def called(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        with failures_of(name), awaited(name):
            return function(achieved, desired)

    return called


def _own_function(name: str, goals: Goals) -> GoalFunction:
    """The function that `module:function` names, also in the current folder. Raises ValueError with one line."""
    module, _, attribute = name.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file of the user hides a package of ours
    try:
        with awaited(f"the import of {module}", START_SECONDS):
            return GoalRows(getattr(importlib.import_module(module), attribute), goals)
    except FAILURES as error:  # the module is the user's
        got = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"reward_function: wanted {name} to be a function of goals, got {got}") from error
