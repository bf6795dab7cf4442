"""The priorities of a ring's trajectories, or of all their rows, and draws in proportion to them (arXiv:1511.05952).

    leaf_i = p_i^alpha,  p_i = |delta_i| + epsilon        P(i) = leaf_i / sum of leaves        w_i = (count P(i))^-beta

A leaf is a trajectory, or a row of one. A leaf that no window may start in is 0 and is never drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from replay.priorities.tree import SumTree
from replay.ring.growing import GrowingArray

FIRST_PRIORITY = 1.0
"""Priority of the first rows, if nothing better is known of them."""


class Tickets(NamedTuple):
    """The places of n drawn leaves, int64 `[n]` each. A later update finds out by them whether a place was overwritten.

    slots: of the ring. rows: within the trajectory; 0 for a whole one. inserted: number of the trajectory in the slot.
    """

    slots: np.ndarray
    rows: np.ndarray
    inserted: np.ndarray


class Priorities:
    """One leaf for each row of each slot, or one for each slot.

    Args:
        slots: Most slots of the ring.
        unroll_length: Rows T of a trajectory.
        alpha: Exponent of the priorities, in [0, 1].
        epsilon: Added to each priority, so that no row is lost for ever.
        whole: Whether a leaf is a whole trajectory instead of a row.
        burn_in: Rows at the beginning of a trajectory that are not learned from.

    Attributes:
        largest: The largest priority ever seen. A new row gets it if nothing better is known.
        count: Number of leaves that may be drawn.
    """

    def __init__(
        self, slots: int, unroll_length: int, *, alpha: float, epsilon: float, whole: bool = False, burn_in: int = 0
    ) -> None:
        leaves = 1 if whole else unroll_length
        self.largest = FIRST_PRIORITY
        self.count = 0
        self.tree = SumTree(slots * leaves)
        self._leaves = leaves
        self._whole = whole
        self._burn_in = burn_in
        self._alpha = alpha
        self._epsilon = epsilon
        self._growing = GrowingArray((slots,), "int64")
        self._inserted = self._growing.array  # number of the trajectory in each slot, 0 in an empty one
        self._next = 1
        self._end = 0  # the slots from here on were never written, or their memory was returned

    def add(self, slot: int, used: np.ndarray) -> None:
        """Give a new trajectory the largest priority. used: bool `[T]`, whether the action of each row was used.

        A leaf without a used row after the burn-in is 0.
        """
        drawn = used.copy()  # bool [T]
        drawn[: self._burn_in] = False  # rows of burn-in are not learned from
        if self._whole:
            drawn = np.array([drawn.any()])  # [1], one leaf for the whole trajectory
        self.tree.set(self._numbers(slot), np.where(drawn, self.largest**self._alpha, 0.0))  # drawn soon, then known
        self.count += int(drawn.sum())
        self._inserted[slot] = self._next  # a new number voids the tickets of the slot's former trajectory
        self._next += 1
        self._end = max(self._end, slot + 1)

    def remove(self, slot: int, used: np.ndarray) -> None:
        """Empty a slot. used: as when it was added."""
        numbers = self._numbers(slot)
        self.count -= int((self.tree[numbers] > 0).sum())  # leaves above 0 are those that could be drawn
        self.tree.set(numbers, np.zeros(self._leaves))
        self._inserted[slot] = 0

    def move(self, slots: Mapping[int, int], used: np.ndarray) -> None:
        """Trajectories have changed their slots: old slot -> new slot. Tickets of the old slots are void.

        used: bool `[slots, T]`, in the new slots.
        """
        for old, new in slots.items():
            self.tree.set(self._numbers(new), self.tree[self._numbers(old)])
            self.tree.set(self._numbers(old), np.zeros(self._leaves))
            self._inserted[new], self._inserted[old] = self._inserted[old], 0

    def give_back(self, slots: int) -> None:
        """Return the memory of slot `slots` and all higher ones to the system. Only lower slots hold trajectories."""
        self.tree.give_back(slots * self._leaves)
        self._growing.give_back(slots)
        self._end = slots

    def start(self, slot: int, errors: np.ndarray) -> None:
        """Replace the priorities of a new trajectory. Leaves that may not be drawn stay 0.

        errors: `[leaves]`, sizes of the temporal differences at the time of acting; NaN where one is not known. Such a leaf
        gets the largest priority of its trajectory, or the largest ever seen if no other leaf has one.
        """
        numbers = self._numbers(slot)
        drawn = self.tree[numbers] > 0
        known = drawn & np.isfinite(errors)  # bool [leaves]
        if not known.any():
            return
        priorities = np.where(known, np.abs(errors), 0.0) + self._epsilon  # p = |delta| + epsilon
        priorities[~known] = priorities[known].max()  # such as row T-1, whose bootstrap value acting did not store
        self._set(numbers[drawn], priorities[drawn])

    def update(self, tickets: Tickets, errors: np.ndarray) -> int:
        """Replace priorities of leaves that are still there. Of repeated leaves the last one counts.

        errors: `[n]`, sizes of the temporal differences; one that is not finite changes nothing. Returns the number of tickets
        whose trajectory was evicted or moved in the meantime.
        """
        there = self._inserted[tickets.slots] == tickets.inserted  # bool [n]
        # A refused update has NaN for errors. A void ticket names a place that holds another trajectory, or none, by now.
        good = there & np.isfinite(errors)
        if good.any():
            numbers = tickets.slots[good] * self._leaves + tickets.rows[good]  # leaf of row t in slot s: s T + t
            self._set(numbers, np.abs(errors[good]).astype(np.float64) + self._epsilon)
        return int((~there).sum())

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Tickets, np.ndarray]:
        """Draw leaves in proportion to their weights, one out of each of `count` equal parts of the total, in random order.

        Returns their tickets, and count P(i) of each, float64 `[count]`.
        """
        # The order is random, so that any part of the columns is a fair sample: several batches may be drawn at once.
        parts = generator.permutation(count)
        numbers = self.tree.find(stratified(generator.random(count), self.tree.total, parts))
        slots, rows = np.divmod(numbers, self._leaves)  # [count] each; row 0 of a whole trajectory
        return Tickets(slots, rows, self._inserted[slots]), self.tree[numbers] * (self.count / self.tree.total)

    def state_dict(self) -> dict[str, Any]:
        """The state that drawing depends on. Tensors share memory with this object."""
        end = self._end
        return {
            "leaves": torch.from_numpy(self.tree.leaves[: end * self._leaves]),
            "inserted": torch.from_numpy(self._inserted[:end]),
            "next": self._next,
            "largest": self.largest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()` of priorities of the same size."""
        leaves, written = state["leaves"].numpy(), self._end
        self._end, self._next, self.largest = len(state["inserted"]), state["next"], state["largest"]
        self.tree.load(leaves, written * self._leaves)
        self._inserted[: self._end] = state["inserted"].numpy()
        self._inserted[self._end : written] = 0
        self.count = int((leaves > 0).sum())  # derived, so no file holds it

    def _set(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        """priorities: p, above 0."""
        self.largest = max(self.largest, float(priorities.max()))  # of p and not p^alpha; it never falls
        self.tree.set(numbers, priorities**self._alpha)  # leaf = p^alpha

    def _numbers(self, slot: int) -> np.ndarray:
        return np.arange(slot * self._leaves, (slot + 1) * self._leaves)


def stratified(uniforms: np.ndarray, total: float, parts: np.ndarray | None = None) -> np.ndarray:
    """Targets (k + u_k) / K * total, one in each of K equal parts, float64 `[K]`.

    Args:
        uniforms: u, in [0, 1), `[K]`.
        total: The sum of all leaves.
        parts: k, `[K]`; 0 to K - 1 by default.
    """
    count = len(uniforms)
    # One draw from each part has less variance than independent draws, with the same probabilities.
    places: np.ndarray = ((np.arange(count) if parts is None else parts) + uniforms) / count * total
    return places


def importance_weights(relative: np.ndarray, beta: float) -> np.ndarray:
    """w = (count P)^-beta, float64 `[n]`, before the division by the batch's maximum. relative: count P of each leaf, `[n]`."""
    weights: np.ndarray = relative**-beta  # (count P)^-beta; with beta = 1 the draw is fully corrected
    return weights


def normalised(weights: np.ndarray) -> np.ndarray:
    """Weights `[n]` divided by their maximum, so that they only ever reduce a step."""
    divided: np.ndarray = weights / weights.max()  # the maximum of the batch, so a rare leaf elsewhere shrinks no step
    return divided
