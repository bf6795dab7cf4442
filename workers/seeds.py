"""Seeds of workers: one tree a run, so that every worker, and every one started again, draws from its own stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_seeds(sequence: np.random.SeedSequence, count: int) -> tuple[int, ...]:
    """One seed for each of `count` workers."""
    return tuple(_seed(child) for child in sequence.spawn(count))


def fresh_seed(seeds: Sequence[int], restarts: int) -> int:
    """The seed of the worker that makes the run's restart number `restarts` (from 1); `seeds` are the first ones."""
    return _seed(np.random.SeedSequence([*seeds, restarts]))


def policy_seed(seeds: Sequence[int]) -> int:
    """The seed of a policy that acts for all workers; `seeds` are the first ones."""
    return fresh_seed(seeds, 0)


def _seed(sequence: np.random.SeedSequence) -> int:
    """In [1, 2^30): environments add their number to it, and zero means `no seed` to the emulator."""
    return int(sequence.generate_state(1)[0]) % (2**30 - 1) + 1
