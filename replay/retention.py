"""What a ring keeps: the newest, a uniform sample of everything, or what is nearest to the current policy."""

from __future__ import annotations

import heapq

import numpy as np

from replay.base import Encode, ReplayConfig, ReplayContext, behaviour_distances
from replay.ring import Retention, Ring

RETENTIONS = ("fifo", "reservoir")
INSERTIONS = ("elite_insertion",)


def make_ring(config: ReplayConfig, context: ReplayContext) -> Ring:
    """The ring of a replay with these settings."""
    return Ring(config, context, _make_retention(config, context))


def require_encode(config: ReplayConfig, context: ReplayContext) -> Encode:
    """The learner's encode function. Raises ValueError where it is missing, or the features it is compared with are."""
    if context.encode is None:
        raise ValueError(f"{config.type} replay: wanted a function that encodes trajectories, got none")
    if config.needs_features and not context.contract.feature_count:
        raise ValueError(f"{config.type} replay: {config.dist_function} wanted trajectories with features, got none")
    return context.encode


def _make_retention(config: ReplayConfig, context: ReplayContext) -> Retention:
    if config.insert_strategy == "elite_insertion":
        return EliteInsertion(config, require_encode(config, context))
    return Reservoir(context.generator) if config.retention == "reservoir" else fifo


def fifo(ring: Ring) -> int:
    """The newest `capacity` trajectories."""
    return ring.inserted % ring.capacity


class Reservoir:
    """Every trajectory gets a random key, the largest keys stay: at any time a uniform sample of all that came."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._smallest_first: list[tuple[float, int]] = []  # key and slot

    def __call__(self, ring: Ring) -> int | None:
        key = self._generator.random()
        if ring.size < ring.capacity:
            heapq.heappush(self._smallest_first, (key, ring.size))
            return ring.size
        smallest, row = self._smallest_first[0]
        if key < smallest:
            return None
        heapq.heapreplace(self._smallest_first, (key, row))
        return row


class EliteInsertion:
    """Once the ring is full, the farthest from the current policy of a few random trajectories makes room."""

    def __init__(self, config: ReplayConfig, encode: Encode) -> None:
        self._config = config
        self._encode = encode

    def __call__(self, ring: Ring) -> int:
        if ring.size < ring.capacity:
            return ring.size
        rows = ring.distinct(min(self._config.elite_batch_size, ring.size))
        trajectories = ring.read(rows)
        distances = behaviour_distances(self._config, self._encode(trajectories), trajectories)
        return int(rows[np.argmax(distances)])
