"""The only loop that steps environments: observe, act, step, and write row t of N trajectories in place."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, process_time

import numpy as np

from replay.trajectory import Arrays
from workers.finite import check_environments
from workers.policy import Policy
from wrappers.spec import VectorEnv

CLOCKS = ("env", "act", "write", "wait", "env_cpu", "act_cpu", "write_cpu")
"""What a worker's time goes into: stepping, inference, writing rows, waiting for free slots. Then how much of the first three
its process computed: where cores are short, the rest is waiting for one."""


def cpu_seconds(seconds: np.ndarray) -> float:
    """CPU time of all workers together, out of their clocks `[workers, len(CLOCKS)]`."""
    return float(seconds[:, CLOCKS.index("env_cpu") :].sum())


class Rollout:
    """N environments and who acts for them. One `collect` writes N trajectories of T steps into a run of N slots.

    slots: the arena's arrays, `[slot_count, *shape]` each field. seconds: float64 `[len(CLOCKS)]`, added to in place.
    environment_ids: int `[N]`, which of the run's environments they are.
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
        self.seconds = seconds
        self.unroll_length = slots["actions"].shape[1]
        self.environment_ids = environment_ids
        self._float_frames = np.dtype(env.spec.frame_dtype).kind == "f"
        self.observations = env.reset(seed)
        self._check_observations()
        self.first = np.ones(env.num_envs, bool)  # observations that are their episode's first

    def collect(self, first_slot: int) -> None:
        """Write slots `first_slot` to `first_slot + N - 1`, one trajectory an environment. Raises NotFiniteError."""
        for _ in self.steps(first_slot):
            pass

    def steps(self, first_slot: int) -> Iterator[None]:
        """Collect, with a pause in every step while the policy thinks."""
        rows = {name: array[first_slot : first_slot + self.env.num_envs] for name, array in self.slots.items()}
        stack = self.env.spec.frames_stacked
        self.policy.refresh()
        rows["environment_id"][:] = self.environment_ids
        rows["frames"][:, :stack] = self.observations  # the first observation, with the frames before it
        for t in range(self.unroll_length):
            started, started_cpu = perf_counter(), process_time()  # of all threads: native environments step in their own
            self.policy.ask(self.observations, self.first)
            asking, asking_cpu = perf_counter() - started, process_time() - started_cpu
            yield
            self._step(rows, t, stack, asking, asking_cpu)
        check_environments("rewards", rows["rewards"], self.environment_ids)

    def _step(self, rows: Arrays, t: int, stack: int, asking: float, asking_cpu: float) -> None:
        started, started_cpu = perf_counter() - asking, process_time() - asking_cpu
        acted = self.policy.answer()
        inferred, inferred_cpu = perf_counter(), process_time()
        step = self.env.step(acted.actions)
        stepped, stepped_cpu = perf_counter(), process_time()
        rows["actions"][:, t] = acted.actions
        rows["behaviour_logits"][:, t] = acted.logits
        rows["behaviour_values"][:, t] = acted.values
        if acted.features is not None:
            rows["behaviour_features"][:, t] = acted.features
        rows["policy_version"][:, t] = self.policy.version
        rows["frames"][:, stack + t] = step.observations[:, -1]
        rows["rewards"][:, t] = step.rewards
        rows["terminated"][:, t] = step.terminated
        rows["truncated"][:, t] = step.truncated
        rows["reset"][:, t] = step.reset
        rows["action_used"][:, t] = step.action_used
        rows["episode_return"][:, t] = step.episode_return
        rows["episode_length"][:, t] = step.episode_length
        self.observations, self.first = step.observations, step.reset
        self._check_observations()
        written, written_cpu = perf_counter(), process_time()
        self.seconds[0] += stepped - inferred
        self.seconds[1] += inferred - started
        self.seconds[2] += written - stepped
        self.seconds[4] += stepped_cpu - inferred_cpu
        self.seconds[5] += inferred_cpu - started_cpu
        self.seconds[6] += written_cpu - stepped_cpu

    def _check_observations(self) -> None:
        """Frames of whole numbers need no look."""
        if self._float_frames:
            check_environments("observations", self.observations, self.environment_ids)
