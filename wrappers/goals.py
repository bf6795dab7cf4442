"""Goals of environments whose observations name one: where a frame holds them, and what reward another goal would have given.

Such an environment has a Dict observation with the entries `observation`, `achieved_goal` and `desired_goal`, as in
Gymnasium-Robotics. Its function `compute_reward(achieved_goal, desired_goal, info)` gives the reward of a step whose next
observation has that achieved goal. Some have `compute_terminated` with the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from wrappers.gymnasium_spaces import VECTOR, ObservationPlan
from wrappers.spaces import Goals
from wrappers.spec import FAILURES, EnvSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
ENTRIES = ("observation", ACHIEVED, DESIRED)
REWARD, TERMINATED = "compute_reward", "compute_terminated"


def goals_of(plan: ObservationPlan, space: spaces.Space[Any]) -> Goals | None:
    """The goals in frames of this plan; None if the observation has no such entries, or if they are no vectors of one shape."""
    if not isinstance(space, spaces.Dict) or not all(name in space.spaces for name in ENTRIES):
        return None
    ends = np.cumsum([part.size for part in plan.vectors]).tolist()
    # A goal of choices is one-hot in a frame, which is not what `compute_reward` takes.
    found = {
        part.path: (end - part.size, end, part.shape)
        for part, end in zip(plan.vectors, ends, strict=True)
        if part.path in ((ACHIEVED,), (DESIRED,)) and not part.counts
    }
    if len(found) < 2 or len({shape for *_, shape in found.values()}) > 1:
        return None
    (*achieved, shape), (*desired, _) = found[(ACHIEVED,)], found[(DESIRED,)]
    leaf = VECTOR if plan.leaves else ""
    return Goals(leaf, (achieved[0], achieved[1]), (desired[0], desired[1]), shape, str(space[DESIRED].dtype))


def with_functions(spec: EnvSpec, env: gymnasium.Env[Any, Any]) -> EnvSpec:
    """The spec with the names of the functions of its goals that the environment or a wrapper has."""
    if spec.goals is None:
        return spec
    names = tuple(name for name in (REWARD, TERMINATED) if env.has_wrapper_attr(name))
    return replace(spec, goals=replace(spec.goals, functions=names))


class GoalRows:
    """A function of achieved goals, desired goals and an info, which is empty, for N rows at once.

    If the function does not return N numbers for N rows, it is called for each row.

    Args:
        function: the environment's or the user's.
        goals: shape and dtype of what it takes.

    Raises ValueError in one line if it returns no number for goals of zeros.
    """

    def __init__(self, function: Callable[..., Any], goals: Goals) -> None:
        self._function = function
        self._goals = goals
        zeros = np.zeros((2, math.prod(goals.shape)), np.float32)
        try:
            self._takes_rows = np.shape(function(*self._shaped(zeros, zeros), {})) == (2,)
        except FAILURES:  # a function of one row may fail with several in any way
            self._takes_rows = False
        try:
            self(zeros, zeros)
        except FAILURES as error:
            got = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"wanted a function of achieved goal, desired goal and info that gives a number, got {got}"
            ) from error

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Its values, float32 `[N]`, for goals float32 `[N, G]`."""
        achieved, desired = self._shaped(achieved, desired)
        if self._takes_rows:
            return np.asarray(self._function(achieved, desired, {}), np.float32)
        values = [self._function(one, other, {}) for one, other in zip(achieved, desired, strict=True)]
        return np.array([float(np.asarray(value).item()) for value in values], np.float32)

    def _shaped(self, *goals: np.ndarray) -> list[np.ndarray]:
        return [each.reshape(-1, *self._goals.shape).astype(self._goals.dtype) for each in goals]
