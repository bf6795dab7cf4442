"""Environments for Gymnasium with every kind of observation and action, named `Matrix-<observations>-<actions>[-mask]-v0`.

The right action is the cue of the newest observation. A masked environment raises an exception at an illegal action. So a run
in it ends at once, in whatever mode, if the mask is not obeyed everywhere.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 3
EPISODE_STEPS = 5  # every second episode ends by a time limit
OBSERVATIONS = ("vector", "image", "dict")
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(CUES),
    "multi": spaces.MultiDiscrete([CUES, 2]),
    "box": spaces.Box(np.array([-1.0, 2.0], np.float32), np.array([1.0, 4.0], np.float32)),
}


class Matrix(gymnasium.Env[Any, Any]):
    """One cue at a time. The last value of each component of the action may be illegal, unless it is the cue."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, observations: str, actions: str, *, mask: bool, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._kind, self._masked = observations, mask
        self.action_space = ACTIONS[actions]
        parts: dict[str, spaces.Space[Any]] = {
            "image": spaces.Box(0, 255, (12, 12), np.uint8),
            "vector": spaces.Box(-np.inf, np.inf, (CUES,), np.float64),
        }
        if mask:
            self._legal_count = CUES if actions == "discrete" else CUES + 2
            parts["action_mask"] = spaces.MultiBinary(self._legal_count)
        shown = {"vector": ["vector"], "image": ["image"], "dict": ["image", "vector"]}[observations]
        names = [*shown, *(["action_mask"] if mask else [])]
        self._names = names
        self.observation_space = parts[names[0]] if len(names) == 1 else spaces.Dict({name: parts[name] for name in names})
        self._cue = self._steps = self._episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._episodes = 1 if seed is not None else self._episodes + 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"wanted an action in {self.action_space}, got {action!r}")
        chosen = np.atleast_1d(action)
        if self._masked and not self._legal()[int(chosen[0])]:
            raise ValueError(f"wanted a legal action, got {chosen} with mask {self._legal()}")
        reward = 1.0 if chosen.dtype.kind == "f" or int(chosen[0]) == self._cue else 0.0
        self._steps += 1
        ended = self._steps == EPISODE_STEPS
        by_limit = self._episodes % 2 == 0
        return self._observe(), reward, ended and not by_limit, ended and by_limit, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), 80 * self._cue, np.uint8)

    def _legal(self) -> np.ndarray:
        legal = np.ones(self._legal_count, np.int8)
        if self._cue != CUES - 1:
            legal[CUES - 1] = 0
        return legal

    def _observe(self) -> Any:
        self._cue = int(self.np_random.integers(CUES))
        image = np.zeros((12, 12), np.uint8)
        image[4 * self._cue : 4 * self._cue + 4] = 255
        values = {"image": image, "vector": np.eye(CUES)[self._cue]}
        if self._masked:
            values["action_mask"] = self._legal()
        return values[self._names[0]] if len(self._names) == 1 else {name: values[name] for name in self._names}


def register() -> None:
    """Make the environments known to Gymnasium."""
    for observations in OBSERVATIONS:
        for actions in ACTIONS:
            for mask in (False, True) if actions != "box" else (False,):
                gymnasium.register(
                    f"Matrix-{observations}-{actions}{'-mask' if mask else ''}-v0",
                    Matrix,
                    kwargs={"observations": observations, "actions": actions, "mask": mask},
                )


register()
