"""Hindsight experience replay: drawn transitions with goals that their episode has achieved later.

Source: Andrychowicz et al. 2017 (arXiv:1707.01495), the strategy `future`. With `hindsight` k a transition keeps its goal g
with probability 1 / (k + 1). Otherwise its goal becomes g', which was achieved after a later step of the episode. That step is
drawn uniformly from the transition's own to the last one:

    (x_t || g, a_t, r(m(x_{t+1}), g), x_{t+1} || g)  ->  (x_t || g', a_t, r(m(x_{t+1}), g'), x_{t+1} || g')

where m(x) is the goal that x achieves. An episode lies in several trajectories, which are found by their order in the
environment. Of an episode that still runs, the steps that are stored count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from replay.base import ReplayConfig, ReplayContext
from replay.ring.growing import GrowingArray
from replay.ring.storage import PlainStorage, Storage


class Hindsight:
    """The order of each environment's trajectories, and other goals for windows of one row.

    The ring must evict its oldest trajectory first: of each environment it then holds all trajectories from some number on.

    Args:
        config: The replay's settings.
        context: See ReplayContext.
        storage: The ring's.

    Raises ValueError if the windows have several rows, or nothing is known of the goals.
    """

    def __init__(self, config: ReplayConfig, context: ReplayContext, storage: Storage) -> None:
        if context.contract.window != 1 or context.goals is None or not isinstance(storage, PlainStorage):
            got = f"windows of {context.contract.window} and {'no goals' if context.goals is None else 'goals'}"
            raise ValueError(f"hindsight: wanted windows of one row with goals in plain storage, got {got}")
        self._goals = context.goals
        self._storage = storage
        self._generator = context.generator
        self._probability = config.hindsight / (config.hindsight + 1)  # of another goal: k / (k + 1)
        self._unroll_length = context.contract.unroll_length
        self._growing = [GrowingArray((storage.capacity,), "int64") for _ in range(2)]
        # By slot: the number of the trajectory in its environment, and how many steps of its last episode lie in later ones.
        self._numbers, self._beyond = (growing.array for growing in self._growing)
        # By environment: its row in the table, its oldest stored number, that of the first trajectory of its running episode,
        # and the next one.
        self._environments: dict[int, list[int]] = {}
        self._table = np.zeros((1, 1), np.int64)  # [environments, P]: slot of trajectory number i at place i modulo P

    def add(self, slot: int, before: int | None) -> None:
        """A trajectory was stored. before: slot of its environment's newest one until now."""
        state = self._environments.setdefault(int(self._environment_of(slot)), [len(self._environments), 0, 0, 0])
        row, oldest, running, number = state
        self._make_room(number + 1 - oldest)  # trajectories of this environment with the new one
        # After a worker was replaced, an environment begins a new episode though no step ended the last one.
        if before is None or not self._storage.follows(slot, before):
            running = number
        ends = np.flatnonzero(self._ended(slot))  # rows at which an episode ends
        earlier = np.arange(max(oldest, running), number)  # stored ones whose last episode ran on into this one
        self._beyond[self._table[row, earlier % self._table.shape[1]]] += ends[0] + 1 if len(ends) else self._unroll_length
        self._table[row, number % self._table.shape[1]] = slot
        self._numbers[slot], self._beyond[slot] = number, 0
        # If an episode ended here, the running one began in this trajectory, or begins in the next.
        state[2:] = number if len(ends) else running, number + 1

    def remove(self, slot: int) -> None:
        """A trajectory is evicted, the oldest of its environment."""
        self._environments[int(self._environment_of(slot))][1] = int(self._numbers[slot]) + 1

    def move(self, slots: Mapping[int, int], count: int) -> None:
        """Trajectories have changed their slots: old slot -> new slot. They lie in slots 0 to count - 1 now."""
        old, new = list(slots), list(slots.values())
        for array, growing in zip((self._numbers, self._beyond), self._growing, strict=True):
            array[new] = array[old]
            growing.give_back(count)
        self._enter(np.array(new, np.int64))

    def relabel(self, slots: np.ndarray, rows: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
        """Give windows that were read into `out`, `[n, *shape]` each field, other goals. slots, rows: of the windows, `[n]`."""
        # Positions of the windows that get another goal.
        chosen = np.flatnonzero(self._generator.random(len(slots)) < self._probability)
        if not len(chosen):
            return
        goals = self._later_goals(slots[chosen], rows[chosen])  # g', uint8 [n, bytes]
        stack = self._storage.frames_stacked
        frames = out["frames"].reshape(len(slots), 1 + stack, -1).view(np.uint8)  # T = 1: S + 1 frames [n, S + 1, bytes]
        # m(x_{t+1}) [n, G], from the newest frame
        achieved = np.ascontiguousarray(frames[chosen, stack, self._goals.achieved]).view(np.float32)
        desired = goals.view(np.float32)  # [n, G]
        out["rewards"][chosen, 0] = self._goals.reward(achieved, desired)  # R(m(x_{t+1}), g')
        if self._goals.terminated:
            out["terminated"][chosen, 0] = self._goals.terminated(achieved, desired)
        for place in range(1 + stack):
            # The first S - 1 frames of a stack may be from before the episode. Those are zeros and stay so.
            here = frames[chosen, place].any(axis=1) if place < stack - 1 else np.ones(len(chosen), bool)
            frames[chosen[here], place, self._goals.desired] = goals[here]

    def state_dict(self, slots: np.ndarray) -> dict[str, Any]:
        """The state that goals are drawn by, except the generator. slots: those that hold trajectories."""
        return {
            "numbers": torch.from_numpy(self._numbers[slots]),
            "beyond": torch.from_numpy(self._beyond[slots]),
            "environments": {environment: list(state) for environment, state in self._environments.items()},
        }

    def load_state_dict(self, slots: np.ndarray, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`. The storage must have been loaded. slots: as there."""
        self._numbers[slots], self._beyond[slots] = state["numbers"].numpy(), state["beyond"].numpy()
        self._environments = {environment: list(known) for environment, known in state["environments"].items()}
        self._table = np.zeros((1, 1), np.int64)
        self._make_room(max((end - oldest for _, oldest, _, end in self._environments.values()), default=0))
        self._enter(slots)

    def _later_goals(self, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Goals achieved after steps drawn uniformly from these to the last ones of their episodes, uint8 `[n, bytes]`."""
        length = self._unroll_length
        ended = self._ended(slots) & (np.arange(length) >= rows[:, None])  # bool [n, T], ends from the row itself on
        # [n], steps from the start of the trajectory to the episode's end
        ends = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, length + self._beyond[slots])
        hops, later = np.divmod(rows + self._generator.integers(ends - rows), length)  # j: trajectories ahead, row in that one
        # [n], the slots that hold step j
        at = self._table[self._rows_of(slots), (self._numbers[slots] + hops) % self._table.shape[1]]
        # Frame S + t is the observation after step t.
        return self._storage.read_bytes(at, later + self._storage.frames_stacked, self._goals.achieved)

    def _ended(self, slots: int | np.ndarray) -> np.ndarray:
        """Whether each step ended its episode, bool `[T]`, or `[n, T]`."""
        ended: np.ndarray = self._storage.columns["terminated"][slots] | self._storage.columns["truncated"][slots]
        return ended

    def _environment_of(self, slots: int | np.ndarray) -> np.ndarray:
        environments: np.ndarray = self._storage.columns["environment_id"][slots]
        return environments

    def _rows_of(self, slots: np.ndarray) -> np.ndarray:
        """The rows of the table in which the environments of these slots are, int64 `[n]`."""
        known = np.array(sorted(self._environments))
        rows = np.array([self._environments[environment][0] for environment in known.tolist()])
        return rows[np.searchsorted(known, self._environment_of(slots))]

    def _enter(self, slots: np.ndarray) -> None:
        """Write the slots of trajectories into the table."""
        if len(slots):
            self._table[self._rows_of(slots), self._numbers[slots] % self._table.shape[1]] = slots

    def _make_room(self, count: int) -> None:
        """Let the table have a row for each environment, and places for `count` trajectories of each."""
        rows, places = self._table.shape
        if len(self._environments) <= rows and count <= places:
            return
        before, self._table = self._table, np.zeros((len(self._environments), max(places, 2 * count)), np.int64)
        for row, oldest, _, end in self._environments.values():
            if row < rows:
                numbers = np.arange(oldest, end)
                self._table[row, numbers % self._table.shape[1]] = before[row, numbers % places]
