"""Trajectories: the data contract, shared memory, the replay kinds and their mixture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np

from replay.base import Replay, ReplayConfig
from replay.mixture import Mixture, largest_share
from replay.queue import QueueReplay
from replay.standard import StandardReplay
from replay.trajectory import TrajectoryContract

__all__ = [
    "REPLAYS",
    "Mixture",
    "ReplayConfig",
    "check_replays",
    "make_mixture",
    "memory_bytes",
    "parse_replay_parameters",
    "replay_names",
]

RATIO_TOLERANCE = 1e-3  # ratios written with three digits (0.333) still count as summing to one
LARGEST_CAPACITY = 10**12  # trajectories; far above any memory, and small enough to be counted in bytes


def _queue(
    config: ReplayConfig, contract: TrajectoryContract, share: int, min_fill: int, generator: np.random.Generator
) -> Replay:
    return QueueReplay(contract, config.capacity, share)


def _standard(
    config: ReplayConfig, contract: TrajectoryContract, share: int, min_fill: int, generator: np.random.Generator
) -> Replay:
    return StandardReplay(contract, config.capacity, min_fill, generator)


REPLAYS: dict[str, Callable[[ReplayConfig, TrajectoryContract, int, int, np.random.Generator], Replay]] = {
    "queue": _queue,
    "standard": _standard,
}


def parse_replay_parameters(text: str) -> tuple[ReplayConfig, ...]:
    """Read `--replay_parameters`: a JSON list of objects with type, capacity (trajectories) and sample_ratio.

    Raises ValueError with one line that says what was wanted and what came.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, too many brackets
        raise ValueError(
            f"replay_parameters: wanted a JSON list of objects, got {_short(text)} ({_short(str(error))})"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"replay_parameters: wanted a JSON list with at least one replay, got {_short(text)}")
    replays = tuple(_parse_entry(index, entry) for index, entry in enumerate(entries))
    total = sum(replay.sample_ratio for replay in replays)
    if abs(total - 1) > RATIO_TOLERANCE:
        raise ValueError(f"replay_parameters: wanted sample_ratio values that sum to 1, got a sum of {total:g}")
    return replays


def _parse_entry(index: int, entry: object) -> ReplayConfig:
    where = f"replay_parameters[{index}]"
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: wanted an object with type, capacity and sample_ratio, got {_short(repr(entry))}")
    wanted = {"type", "capacity", "sample_ratio"}
    if unknown := sorted(set(entry) - wanted):
        raise ValueError(f"{where}: unknown key {_short(repr(unknown[0]))}; known are {', '.join(sorted(wanted))}")
    if missing := sorted(wanted - set(entry)):
        raise ValueError(f"{where}: {missing[0]!r} is missing")
    kind, capacity, ratio = entry["type"], entry["capacity"], entry["sample_ratio"]
    if not isinstance(kind, str) or kind not in REPLAYS:
        raise ValueError(f"{where}: wanted type {' or '.join(sorted(REPLAYS))}, got {_short(repr(kind))}")
    if not isinstance(capacity, int) or isinstance(capacity, bool) or not 1 <= capacity <= LARGEST_CAPACITY:
        raise ValueError(
            f"{where}: wanted capacity as a whole number of trajectories from 1 to {LARGEST_CAPACITY}, "
            f"got {_short(repr(capacity))}"
        )
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio <= 1:
        raise ValueError(f"{where}: wanted sample_ratio in (0, 1], got {_short(repr(ratio))}")
    return ReplayConfig(kind, capacity, float(ratio))


def _short(text: str) -> str:
    line = " ".join(text[:1000].split())
    return line if len(line) <= 80 else line[:77] + "..."


def check_replays(configs: Sequence[ReplayConfig], batch_size: int) -> None:
    """Refuse a batch that a replay can never give. Raises ValueError."""
    for index, config in enumerate(configs):
        share = config.sample_ratio * batch_size
        if config.type != "queue" and share > config.capacity:
            raise ValueError(
                f"replay_parameters[{index}]: batch_size {batch_size} takes {share:g} trajectories from this replay, "
                f"wanted capacity >= {math.ceil(share)}, got {config.capacity}"
            )


def make_mixture(
    configs: Sequence[ReplayConfig],
    contract: TrajectoryContract,
    batch_size: int,
    fill_in_factor: float,
    generator: np.random.Generator,
) -> Mixture:
    """Build the replays of a run. fill_in_factor: part of a replay's capacity that is written before training starts."""
    check_replays(configs, batch_size)
    total = sum(config.sample_ratio for config in configs)  # one, but for what the tolerance lets pass
    replays = [
        REPLAYS[config.type](
            config,
            contract,
            largest_share(config.sample_ratio / total, batch_size),
            math.ceil(fill_in_factor * config.capacity),
            child,
        )
        for config, child in zip(configs, generator.spawn(len(configs)), strict=True)
    ]
    return Mixture(contract, replays, [config.sample_ratio for config in configs], batch_size)


def replay_names(configs: Sequence[ReplayConfig]) -> list[str]:
    """A name for each replay's metrics: its kind, numbered from the second of a kind on."""
    kinds = [config.type for config in configs]
    earlier = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]
    return [kind if not count else f"{kind}_{count + 1}" for kind, count in zip(kinds, earlier, strict=True)]


def memory_bytes(configs: Sequence[ReplayConfig], contract: TrajectoryContract) -> int:
    """What the replays take when they are full."""
    return sum(config.capacity for config in configs) * contract.bytes_per_trajectory
