"""Which trajectories a full ring keeps: the newest, a uniform sample of all, or those nearest to the current policy."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from replay.base import Encode, ReplayConfig, ReplayContext, behaviour_distances
from replay.kinds.distances import Divergence
from replay.ring.ring import Retention, Ring, RowIndex

INSERTIONS = ("elite_insertion",)


def make_ring(config: ReplayConfig, context: ReplayContext, make_index: Callable[[int], RowIndex] | None = None) -> Ring:
    """Returns the ring of a replay with these settings. make_index: see Ring."""
    return Ring(config, context, _make_retention(config, context), make_index)


def require_encode(config: ReplayConfig, context: ReplayContext) -> Encode:
    """Returns the learner's encode function.

    Raises ValueError if there is none, or if trajectories lack the features with which its result is compared.
    """
    if context.encode is None:
        raise ValueError(f"{config.type} replay: wanted a function that encodes trajectories, got none")
    if config.needs_features and not context.contract.feature_count:
        raise ValueError(f"{config.type} replay: {config.dist_function} wanted trajectories with features, got none")
    return context.encode


def _make_retention(config: ReplayConfig, context: ReplayContext) -> Retention:
    if config.insert_strategy == "elite_insertion":
        return EliteInsertion(config, require_encode(config, context), context.policy_divergence)
    return Reservoir(context.generator) if config.retention == "reservoir" else Fifo()


class Fifo(Retention):
    """Keeps the newest trajectories."""

    def __init__(self) -> None:
        self._oldest_first: deque[int] = deque()  # slots

    def slot_to_evict(self, ring: Ring) -> int:
        return self._oldest_first.popleft()

    def kept(self, slot: int) -> None:
        self._oldest_first.append(slot)

    def moved(self, slots: Mapping[int, int]) -> None:
        self._oldest_first = deque(slots.get(slot, slot) for slot in self._oldest_first)

    def state_dict(self) -> dict[str, Any]:
        return {"oldest_first": torch.tensor(self._oldest_first, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._oldest_first = deque(state["oldest_first"].tolist())


class Reservoir(Retention):
    """Keeps a uniform sample of all trajectories so far.

    Each trajectory gets a random key, and the largest keys stay. Keys below any evicted key are rejected even when there is
    room. Otherwise trajectories that compress well would be over-represented.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._smallest_first: list[tuple[float, int]] = []  # a heap of (key, slot)
        self._key = 0.0  # of the trajectory that `accepts` was asked about last
        self._bar = 0.0  # the largest key that was evicted or rejected

    def accepts(self) -> bool:
        self._key = self._generator.random()  # independent of the content, so the sample stays uniform
        return self._key >= self._bar  # keys below the bar were evicted before, whenever they came

    def slot_to_evict(self, ring: Ring) -> int | None:
        smallest, slot = self._smallest_first[0]
        # The smaller of the two keys leaves. Stored keys and the accepted key are all >= the bar, so it never falls.
        self._bar = min(self._key, smallest)
        if self._key < smallest:
            return None
        heapq.heappop(self._smallest_first)
        return slot

    def kept(self, slot: int) -> None:
        heapq.heappush(self._smallest_first, (self._key, slot))

    def moved(self, slots: Mapping[int, int]) -> None:
        # Keys do not change, so the list stays a heap.
        for index, (key, slot) in enumerate(self._smallest_first):
            if slot in slots:
                self._smallest_first[index] = key, slots[slot]

    def state_dict(self) -> dict[str, Any]:
        keys, slots = zip(*self._smallest_first, strict=True) if self._smallest_first else ((), ())
        return {
            "keys": torch.tensor(keys, dtype=torch.float64),
            "slots": torch.tensor(slots, dtype=torch.int64),
            "bar": self._bar,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._smallest_first = list(zip(state["keys"].tolist(), state["slots"].tolist(), strict=True))
        self._bar = state["bar"]


class EliteInsertion(Retention):
    """Evicts the trajectory farthest from the current policy, among a few that are drawn at random."""

    def __init__(self, config: ReplayConfig, encode: Encode, divergence: Divergence | None) -> None:
        self._config = config
        self._encode = encode
        self._divergence = divergence

    def slot_to_evict(self, ring: Ring) -> int:
        slots = ring.distinct(min(self._config.elite_batch_size, ring.size))  # [n]
        trajectories = ring.read(slots)
        distances = behaviour_distances(self._config, self._encode(trajectories), trajectories, self._divergence)
        return int(slots[np.argmax(distances)])  # the most off-policy one
