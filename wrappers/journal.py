"""Saves environments that cannot save their own state, as a seed and all actions since the reset.

Replaying them is exact for environments that are a function of these two. Atari's are, bit for bit and with sticky actions,
because all their randomness is seeded. ale-py's vector environment cannot be copied or inspected. The state of its single
environment lacks the previous action, which sticky actions may repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wrappers.spaces import ActionSpace, Discrete, MultiDiscrete
from wrappers.spec import Step, VectorEnv


class ReplayStopped(Exception):
    """A replay of actions ended early, as its caller asked."""


class JournaledEnv(VectorEnv):
    """Forwards `reset`, `step` and `close`, and records the seed and the actions.

    A discrete action, or component of one, with at most 256 values takes one byte.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.spec = env.spec
        self.num_envs = env.num_envs
        self._dtype = np.dtype(_journal_dtype(env.spec.action))
        self._seed = 0
        self._actions = bytearray()

    def reset(self, seed: int) -> np.ndarray:
        self._seed = int(seed)
        self._actions.clear()
        return self.env.reset(seed)

    def step(self, actions: np.ndarray) -> Step:
        step = self.env.step(actions)
        # Recorded after the step: an action that the environment refused must not be replayed.
        self._actions += actions.astype(self._dtype).tobytes()
        return step

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the seed, and the actions as `[steps, N, *action_shape]`, uint8 if that holds all of them."""
        shape = (-1, self.num_envs, *self.spec.action.shape)
        # The bytes are copied, because a bytearray cannot grow while an array shares its memory.
        actions = np.frombuffer(bytes(self._actions), self._dtype).reshape(shape)
        return {"seed": self._seed, "actions": torch.from_numpy(actions.copy())}

    def load_state_dict(self, state: dict[str, Any], should_stop: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Replay all actions, at the speed of the environment. Returns the newest observations, `[N, S, *frame_shape]`.

        should_stop: asked before each step. Raises ReplayStopped once it returns true; the environment is then of no use.
        """
        observations = self.reset(state["seed"])
        for actions in state["actions"].numpy():
            if should_stop():
                raise ReplayStopped
            observations = self.step(actions.astype(self.spec.action.dtype)).observations
        return observations


def _journal_dtype(action: ActionSpace) -> str:
    counts = (action.count,) if isinstance(action, Discrete) else action.counts if isinstance(action, MultiDiscrete) else ()
    return "uint8" if counts and max(counts) <= 256 else action.dtype
