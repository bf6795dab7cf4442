"""Trajectories: the data contract, shared memory, the replay kinds and their mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from replay.base import LARGEST_CAPACITY, Encode, Encoded, GoalAccess, ReplayConfig, ReplayContext
from replay.batch import InitialErrors
from replay.kinds.distances import Divergence
from replay.memory import device_bytes, exact_share, most_compared, replay_bytes, settle_capacities, shares, wanted_capacity
from replay.mixture import Mixture
from replay.pace import Pace, PaceConfig
from replay.parameters import needs_encode, needs_features, parse_replay_parameters
from replay.registry import REPLAYS
from replay.trajectory import TrajectoryContract

__all__ = [
    "LARGEST_CAPACITY",
    "REPLAYS",
    "Encode",
    "Encoded",
    "GoalAccess",
    "Mixture",
    "PaceConfig",
    "ReplayConfig",
    "ReplayContext",
    "check_replays",
    "device_bytes",
    "make_mixture",
    "most_compared",
    "needs_encode",
    "needs_features",
    "parse_replay_parameters",
    "replay_bytes",
    "replay_names",
    "settle_capacities",
]


def check_replays(configs: Sequence[ReplayConfig], batch_size: int) -> None:
    """Raises ValueError if a replay's capacity is below its share of a batch, or a circular replay's share is not whole.

    `settle_capacities` checks replays whose size is given as memory. Windows are not checked: any number of them comes out of
    one trajectory.
    """
    for index, config in enumerate(configs):
        if config.type == "circular":
            exact_share(configs, index, batch_size)
            continue
        least = wanted_capacity(config, batch_size)
        if config.type != "queue" and config.memory is None and config.capacity < least:
            size = f"steps for {least} trajectories" if config.steps else f"capacity >= {least}"
            got = f"{config.steps}, which are {config.capacity}" if config.steps else config.capacity
            raise ValueError(
                f"replay_parameters[{index}]: batch_size {batch_size} takes {config.sample_ratio * batch_size:g} trajectories "
                f"from this replay, wanted {size}, got {got}"
            )


def make_mixture(
    configs: Sequence[ReplayConfig],
    contract: TrajectoryContract,
    batch_size: int,
    fill_in_factor: float,
    generator: np.random.Generator,
    *,
    encode: Encode | None = None,
    progress: Callable[[], float] = lambda: 0.0,
    device: torch.device = ReplayContext.device,
    policy_divergence: Divergence | None = None,
    pace: PaceConfig | None = None,
    initial_errors: InitialErrors | None = None,
    goals: GoalAccess | None = None,
) -> Mixture:
    """Returns the replays of a run as a mixture.

    Args:
        configs: As parsed.
        contract: Of the trajectories.
        batch_size: Columns that are drawn together: trajectories of a batch, or windows of one or several batches.
        fill_in_factor: Fraction of a replay's capacity that is inserted before it gives any trajectory.
        generator: Gives one seed to each replay.
        encode: See ReplayContext. It may be None unless `needs_encode(configs)`.
        progress: See ReplayContext.
        device: The learner's.
        policy_divergence: See ReplayContext.
        pace: Batches for each fresh step; None if the replays alone decide.
        initial_errors: See ReplayContext.
        goals: See ReplayContext.

    Raises ValueError if a replay is too small for a batch, or needs `encode`, features or goals and does not get them.
    """
    if not contract.window:
        check_replays(configs, batch_size)
    replays = []
    settled = settle_capacities(configs, contract, batch_size)
    # Seeds are drawn from the generator, not spawned. Spawning would not advance the generator's saved state, and the
    # replays of a resumed run would repeat the draws of the run before.
    seeds = generator.integers(2**63, size=len(configs)).tolist()
    for config, share, seed in zip(settled, shares(configs, batch_size), seeds, strict=True):
        child = np.random.default_rng(seed)
        min_fill = math.ceil(fill_in_factor * config.capacity)
        known = (encode, progress, device, policy_divergence, initial_errors, goals)
        context = ReplayContext(contract, share, min_fill, child, *known)
        replays.append(REPLAYS[config.type](config, context))
    ratios = [config.sample_ratio for config in configs]
    return Mixture(contract, replays, ratios, batch_size, Pace(pace, contract.fresh_steps) if pace else None)


def replay_names(configs: Sequence[ReplayConfig]) -> list[str]:
    """Returns a name for each replay's metrics: its kind, with a number from the second of a kind on."""
    kinds = [config.type for config in configs]
    earlier = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]
    return [kind if not count else f"{kind}_{count + 1}" for kind, count in zip(kinds, earlier, strict=True)]
