"""CartPole without its velocities, for Gymnasium: `--env=benchmarks.hidden_velocities:CartPolePositions-v1`.

One observation does not say which way cart and pole move, so a policy without memory cannot hold the pole up for long. An
episode ends after 200 steps, as in the published results of recurrent agents (docs/results.md).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box

SHOWN = [0, 2]  # position and angle of CartPole's four numbers


class HiddenVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows position and angle only."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        self.observation_space = Box(space.low[SHOWN], space.high[SHOWN])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[SHOWN]


def make(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """CartPole without velocities."""
    return HiddenVelocities(CartPoleEnv(render_mode=render_mode))


gymnasium.register("CartPolePositions-v1", f"{__name__}:make", max_episode_steps=200)
