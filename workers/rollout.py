"""The only loop that steps environments: observe, act, step, and write row t of N trajectories in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replay.trajectory import RETURNS, Arrays
from workers.clocks import Clocks
from workers.finite import check_environments, float_parts
from workers.policy import Policy
from wrappers.spaces import Packing
from wrappers.spec import VectorEnv


class Rollout:
    """N environments and the policy that acts in them. One `collect` writes N trajectories of T steps into N slots.

    Args:
        env: the environments.
        policy: acts in them.
        slots: the arena's arrays, `[slot_count, *shape]` each field.
        seconds: float64 `[len(CLOCKS)]`, the worker's clocks.
        seed: of environment 0; environment i has seed + i.
        environment_ids: int `[N]`, the numbers of these environments in the run.
        return_discount: of the contract; None if it stores no returns.
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
        return_discount: float | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.slots = slots
        self.clocks = Clocks(seconds)
        self.unroll_length = slots["actions"].shape[1]
        self.environment_ids = environment_ids
        self._packing = Packing(env.spec.leaves) if env.spec.leaves else None
        self.return_discount = return_discount
        self.returns = np.zeros(env.num_envs)  # discounted rewards of each environment's episode so far
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
        if self.return_discount is not None:
            self.returns = discount_returns(rows, self.returns, self.return_discount)
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
        """Whole numbers are finite by their dtype."""
        for name, values in float_parts(self._packing, self.observations):
            check_environments(name, values, self.environment_ids)


def discount_returns(rows: Arrays, returns: np.ndarray, discount: float) -> np.ndarray:
    """Fill the discounted rewards of the episode so far, R_t = discount * R_{t-1} + r_t, of N trajectories.

    A row whose action was ignored adds nothing, and an episode begins with 0, also after a truncated one.

    Args:
        rows: fields of the trajectories, `[N, T]` each.
        returns: float64 `[N]`, before row 0.
        discount: per step.

    Returns what row 0 of the next trajectories continues from, float64 `[N]`.
    """
    for t in range(rows["rewards"].shape[1]):
        returns = np.where(rows["action_used"][:, t], discount * returns + rows["rewards"][:, t], returns)
        rows[RETURNS][:, t] = returns
        returns = np.where(rows["terminated"][:, t] | rows["truncated"][:, t], 0.0, returns)
    return returns
