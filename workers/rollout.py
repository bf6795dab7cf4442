"""The only loop that steps environments: observe, act, step, and write row t of N trajectories in place.

With burn-in a trajectory begins with the last rows of the one before it. They are copied from the worker's own memory, because
the slot that they were written to may have been reused by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from replay.trajectory import RECURRENT_STATE, RETURN_FIELDS, WITHOUT_ROWS, Arrays, discount_returns
from workers.base import WorkerSetup
from workers.clocks import Clocks
from workers.finite import check_environments, float_parts
from workers.infos import INFO_FIELDS, InfoWriter
from workers.policy import WorkerPolicy
from wrappers.spaces import Packing
from wrappers.spec import VectorEnv


class Start(NamedTuple):
    """The beginning of a later trajectory of N environments.

    state: float32 `[N, K]`, before its row 0. observations: `[N, S, *frame_shape]`, those of its row 0.
    """

    state: np.ndarray
    observations: np.ndarray


class Rollout:
    """N environments and the policy that acts in them. One `collect` writes N trajectories of T rows into N slots.

    Args:
        env: the environments.
        policy: acts in them.
        slots: the arena's arrays, `[slot_count, *shape]` each field.
        seconds: float64 `[len(CLOCKS)]`, the worker's clocks.
        seed: of environment 0; environment i has seed + i.
        environment_ids: int `[N]`, the numbers of these environments in the run.
        return_discount: discount of the stored returns; None if none are stored.
        overlap: rows that a trajectory repeats from the end of the one before it (burn-in). The first one repeats none.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: WorkerPolicy,
        slots: Arrays,
        seconds: np.ndarray,
        *,
        seed: int,
        environment_ids: np.ndarray,
        return_discount: float | None = None,
        overlap: int = 0,
    ) -> None:
        self.env = env
        self.policy = policy
        self.slots = slots
        self.clocks = Clocks(seconds)
        self._infos = InfoWriter(slots)
        self.unroll_length = slots["actions"].shape[1]
        self.environment_ids = environment_ids
        self._packing = Packing(env.spec.leaves) if env.spec.leaves else None
        self.return_discount = return_discount
        self.returns = np.zeros(env.num_envs)  # discounted rewards of each environment's episode so far
        self.overlap = overlap
        self._recurrent = RECURRENT_STATE in slots
        self._starts: deque[Start] = deque()  # of the trajectories whose first rows are played already
        self._tail: Arrays = {}  # the last `overlap` rows, `[N, overlap, *shape]` each field
        self.observations = env.reset(seed)
        self._check_observations()
        self.first = np.ones(env.num_envs, bool)  # whether the observation is its episode's first

    def collect(self, first_slot: int) -> None:
        """Write slots `first_slot` to `first_slot + N - 1`, one trajectory an environment. Raises NotFiniteError."""
        for _ in self.steps(first_slot):
            pass

    def steps(self, first_slot: int) -> Iterator[None]:
        """Collect, and yield once a step while the policy computes, so that another group of environments can step."""
        block = slice(first_slot, first_slot + self.env.num_envs)
        rows = {name: array[block] for name, array in self.slots.items() if name not in INFO_FIELDS}
        self.policy.refresh()
        rows["environment_id"][:] = self.environment_ids
        start = self._begin(rows)
        self._infos.begin(block, start)
        for t in range(start, self.unroll_length):
            # The state before this row is stored: at row 0 for this trajectory, at later rows for the one that begins there.
            begins = self._recurrent and t % (self.unroll_length - self.overlap) == 0
            with self.clocks.stage("act"):
                self.policy.ask(self.observations, self.first, with_state=begins)
            # The yield is outside the stage, or the steps of another group would be counted as acting too.
            yield
            self._step(rows, block, t, begins=begins)
        self._infos.end(block)
        if self.return_discount is not None:
            # Rows of burn-in came with their returns; computing these again would count their rewards twice.
            played = {name: rows[name][:, start:] for name in RETURN_FIELDS}
            self.returns = discount_returns(played, self.returns, self.return_discount)
        if self.overlap:
            self._tail = {name: rows[name][:, -self.overlap :].copy() for name in rows if name not in WITHOUT_ROWS}
        # One check for each slot block is enough, because the block is handed over only after it.
        check_environments("rewards", rows["rewards"], self.environment_ids)

    def state_dict(self) -> dict[str, Any]:
        """The state of a rollout whose policy keeps a state. Environments and observations are saved elsewhere."""
        return {
            "first": torch.from_numpy(self.first.copy()),
            "starts": [[torch.from_numpy(array.copy()) for array in start] for start in self._starts],
            "tail": {name: torch.from_numpy(array.copy()) for name, array in self._tail.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.first = state["first"].numpy().copy()
        self._starts = deque(Start(*(tensor.numpy().copy() for tensor in start)) for start in state["starts"])
        self._tail = {name: tensor.numpy().copy() for name, tensor in state["tail"].items()}

    def _begin(self, rows: Arrays) -> int:
        """Write what is known before the first step. Returns the first row to play."""
        stack = self.env.spec.frames_stacked
        if not self._tail:
            rows["frames"][:, :stack] = self.observations  # with the S-1 frames before the first one
            return 0
        rows[RECURRENT_STATE][:], rows["frames"][:, :stack] = self._starts.popleft()
        # The first S frames are the stack of row 0. The frames of the tail are the newest ones of rows 1 to `overlap`.
        for name, values in self._tail.items():
            start = stack if name == "frames" else 0
            rows[name][:, start : start + self.overlap] = values
        # Episodes that ended in these rows have been counted.
        rows["episode_return"][:, : self.overlap] = np.nan
        rows["episode_length"][:, : self.overlap] = 0
        return self.overlap

    def _step(self, rows: Arrays, block: slice, t: int, *, begins: bool) -> None:
        with self.clocks.stage("act"):
            acted = self.policy.answer()
        if begins:
            assert acted.state is not None
            if t == 0:
                rows[RECURRENT_STATE][:] = acted.state
            else:
                # The policy and the environment may reuse these arrays at the next step, long before the trajectory begins.
                self._starts.append(Start(acted.state.copy(), self.observations.copy()))
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
            if step.infos is not None:
                self._infos.write(block, t, step.infos)
            self.observations, self.first = step.observations, step.reset
            self._check_observations()

    def _check_observations(self) -> None:
        """Raise NotFiniteError for a non-finite number. Integers are finite by their dtype."""
        for name, values in float_parts(self._packing, self.observations):
            check_environments(name, values, self.environment_ids)


def make_rollout(
    setup: WorkerSetup,
    env: VectorEnv,
    policy: WorkerPolicy,
    slots: Arrays,
    seconds: np.ndarray,
    worker: int,
    seed: int,
    group: int = 0,
) -> Rollout:
    """The rollout of one group of a worker's environments; its seeds follow those of the groups before it.

    Args:
        setup: of the run.
        env, policy, slots, seconds: as `Rollout` takes them.
        worker: its index in the run.
        seed: of the worker.
        group: index of the group in the worker.
    """
    return Rollout(
        env,
        policy,
        slots,
        seconds,
        seed=seed + group * setup.config.envs_per_group,
        environment_ids=setup.config.environments_of(worker, group),
        return_discount=setup.contract.return_discount,
        overlap=setup.contract.overlap,
    )
