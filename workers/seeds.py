"""Seeds of workers. Each run has one tree of seeds, so every worker and every restarted worker draws from its own stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_seeds(sequence: np.random.SeedSequence, count: int) -> tuple[int, ...]:
    """Return one seed for each of `count` workers."""
    return tuple(_seed(child) for child in sequence.spawn(count))


def fresh_seed(seeds: Sequence[int], restarts: int) -> int:
    """Return the seed of a restarted worker. seeds: the first seeds. restarts: number of the restart in the run, from 1."""
    return _seed(np.random.SeedSequence([*seeds, restarts]))


def policy_seed(seeds: Sequence[int]) -> int:
    """Return the seed of a policy that acts for all workers. seeds: the first seeds."""
    return fresh_seed(seeds, 0)  # restarts count from 1, so 0 is free


def _seed(sequence: np.random.SeedSequence) -> int:
    """Return a seed in [1, 2^30). Environments add their index to it, and zero means "no seed" to the emulator."""
    return int(sequence.generate_state(1)[0]) % (2**30 - 1) + 1
