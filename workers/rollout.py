"""The only loop that steps environments: observe, act, step, and write row t of N trajectories in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replay.trajectory import Arrays
from workers.clocks import Clocks
from workers.finite import check_environments
from workers.policy import Policy
from wrappers.spaces import Packing
from wrappers.spec import EnvSpec, VectorEnv


class Rollout:
    """N environments and the policy that acts in them. One `collect` writes N trajectories of T steps into N slots.

    Args:
        env: the environments.
        policy: acts in them.
        slots: the arena's arrays, `[slot_count, *shape]` each field.
        seconds: float64 `[len(CLOCKS)]`, the worker's clocks.
        seed: of environment 0; environment i has seed + i.
        environment_ids: int `[N]`, the numbers of these environments in the run.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        slots: Arrays,
        seconds: np.ndarray,
        *,
        seed: int,
        environment_ids: np.ndarray,
    ) -> None:
        self.env = env
        self.policy = policy
        self.slots = slots
        self.clocks = Clocks(seconds)
        self.unroll_length = slots["actions"].shape[1]
        self.environment_ids = environment_ids
        self._float_leaves = float_leaves(env.spec)
        self.observations = env.reset(seed)
        self._check_observations()
        self.first = np.ones(env.num_envs, bool)  # whether the observation is its episode's first

    def collect(self, first_slot: int) -> None:
        """Write slots `first_slot` to `first_slot + N - 1`, one trajectory an environment. Raises NotFiniteError."""
        for _ in self.steps(first_slot):
            pass

    def steps(self, first_slot: int) -> Iterator[None]:
        """Collect, and yield once a step while the policy computes, so that another group of environments can step."""
        rows = {name: array[first_slot : first_slot + self.env.num_envs] for name, array in self.slots.items()}
        self.policy.refresh()
        rows["environment_id"][:] = self.environment_ids
        rows["frames"][:, : self.env.spec.frames_stacked] = self.observations  # with the S-1 frames before the first one
        for t in range(self.unroll_length):
            with self.clocks.stage("act"):
                self.policy.ask(self.observations, self.first)
            yield
            self._step(rows, t)
        check_environments("rewards", rows["rewards"], self.environment_ids)

    def _step(self, rows: Arrays, t: int) -> None:
        with self.clocks.stage("act"):
            acted = self.policy.answer()
        with self.clocks.stage("env"):
            step = self.env.step(acted.actions)
        with self.clocks.stage("write"):
            rows["actions"][:, t] = acted.actions
            for name, values in acted.fields.items():
                rows[name][:, t] = values
            rows["policy_version"][:, t] = self.policy.version
            # Observation t+1 follows action t: its newest frame is frame S+t of the trajectory.
            rows["frames"][:, self.env.spec.frames_stacked + t] = step.observations[:, -1]
            for name in ("rewards", "terminated", "truncated", "reset", "action_used", "episode_return", "episode_length"):
                rows[name][:, t] = getattr(step, name)
            self.observations, self.first = step.observations, step.reset
            self._check_observations()

    def _check_observations(self) -> None:
        """Frames of whole numbers are finite by their dtype."""
        for name, part, dtype in self._float_leaves:
            numbers = np.ascontiguousarray(self.observations[..., part]).view(dtype)
            check_environments(name, numbers, self.environment_ids)


def float_leaves(spec: EnvSpec) -> list[tuple[str, slice, str]]:
    """Name, place in the last dimension of an observation, and dtype of each part that may hold non-finite numbers."""
    if not spec.leaves:
        return [("observations", slice(None), spec.frame_dtype)] if np.dtype(spec.frame_dtype).kind == "f" else []
    packing = Packing(spec.leaves)
    floats = [leaf for leaf in packing.leaves if np.dtype(leaf.dtype).kind == "f"]
    return [(f"observations ({leaf.name})", packing.parts[leaf.name], leaf.dtype) for leaf in floats]
