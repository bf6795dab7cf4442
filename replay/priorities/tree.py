"""A sum tree: leaves with weights, drawn in proportion to them (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1).

Every node is the sum of its children. A node has many children, so the tree has few levels, and NumPy takes a whole batch
through a level at once. Sums are float64 and always computed anew from the children: differences that are added up would drift.
"""

from __future__ import annotations

import math

import numpy as np

from replay.ring.growing import GrowingArray

LEVELS = 4
"""Levels of nodes above the leaves at most; more of them would cost more calls of NumPy."""
LEAST_CHILDREN = 16


class SumTree:
    """Non-negative weights of `count` leaves, 0 at first. Leaves that were never written take no memory.

    Args:
        count: Number of leaves.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._children = max(LEAST_CHILDREN, math.ceil(count ** (1 / LEVELS)))  # c, with c^LEVELS >= count
        sizes = [count]  # nodes of each level, leaves first
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // self._children))  # rounded up
        # The leaves come first, the root last. Each level is filled up to whole groups of children.
        self._growing = [GrowingArray((-(-size // self._children), self._children), "float64") for size in sizes]
        self._groups = [growing.array for growing in self._growing]  # [groups, c] of each level
        self._flat = [groups.reshape(-1) for groups in self._groups]  # views of the same memory, by node

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._flat[-1][0])

    @property
    def leaves(self) -> np.ndarray:
        """The weights of all leaves, float64 `[count]`, to be read."""
        return self._flat[0][: self.count]

    def __getitem__(self, leaves: np.ndarray) -> np.ndarray:
        """The weights of some leaves."""
        weights: np.ndarray = self._flat[0][leaves]
        return weights

    def set(self, leaves: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of some leaves, int64 `[n]`. Of repeated leaves the last counts. weights: finite and >= 0, `[n]`."""
        self._flat[0][leaves] = weights
        nodes = leaves
        for groups, above in zip(self._groups[:-1], self._flat[1:], strict=True):
            nodes = nodes // self._children  # their parents
            # Nodes may occur several times. That does no harm, because each time they get the same sum.
            above[nodes] = groups.take(nodes, 0).sum(1)

    def find(self, targets: np.ndarray) -> np.ndarray:
        """For each target the least leaf i with target < leaf_0 + ... + leaf_i, int64 `[n]`. An empty leaf is never found.

        targets: float64 `[n]`, in [0, total); `total` must be above 0. One that rounding has moved to the total gets the last
        leaf that is not empty.
        """
        rest = np.array(targets, np.float64)  # [n], what is left of each target within the present group
        nodes = np.zeros(len(rest), np.int64)  # all start at the root
        every = np.arange(len(rest))
        for groups in reversed(self._groups[:-1]):
            sums = groups.take(nodes, 0).cumsum(1)  # [n, c]
            # Within the group's own sum, so that a child is found: rounding may leave a little too much.
            np.minimum(rest, np.nextafter(sums[:, -1], 0.0), out=rest)
            child = (sums > rest[:, None]).argmax(1)  # the first sum ABOVE the rest: `>` never takes an empty child
            rest -= np.where(child > 0, sums[every, child - 1], 0.0)  # minus all children before it
            nodes = nodes * self._children + child  # one level down
        return nodes

    def load(self, weights: np.ndarray, written: int) -> None:
        """Replace all leaves: by weights `[n]`, and by 0 from leaf n on. written: the leaves from here on are 0 already."""
        self._flat[0][: len(weights)] = weights
        self._flat[0][len(weights) : written] = 0.0
        # A zero written into a leaf that was never used would claim its memory, so these are left alone.
        nodes = max(len(weights), written)
        for groups, above in zip(self._groups[:-1], self._flat[1:], strict=True):
            nodes = -(-nodes // self._children)
            above[:nodes] = groups[:nodes].sum(1)  # each sum anew, level by level

    def give_back(self, first: int) -> None:
        """Return the memory of leaf `first` and all higher ones, which are empty, to the system."""
        # The levels above stay claimed, because together they take at most about a fifteenth of the leaves' memory.
        self._growing[0].give_back(-(-first // self._children))
