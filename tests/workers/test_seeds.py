"""The seeds of a run are reproducible, and no seed occurs twice in a run."""

from __future__ import annotations

import numpy as np

from workers.seeds import first_seeds, fresh_seed


def test_seeds_follow_from_the_run_seed() -> None:
    seeds = first_seeds(np.random.SeedSequence(3), 4)
    assert seeds == first_seeds(np.random.SeedSequence(3), 4)
    assert set(seeds).isdisjoint(first_seeds(np.random.SeedSequence(4), 4))
    assert fresh_seed(seeds, 1) == fresh_seed(seeds, 1)
    assert fresh_seed(seeds, 1) != fresh_seed(first_seeds(np.random.SeedSequence(4), 4), 1)


def test_every_restart_draws_from_a_new_stream() -> None:
    seeds = first_seeds(np.random.SeedSequence(3), 4)
    used = [*seeds, *(fresh_seed(seeds, restarts) for restarts in range(1, 1000))]
    assert len(set(used)) == len(used)
    assert all(1 <= seed < 2**30 for seed in used)
