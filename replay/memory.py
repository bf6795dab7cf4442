"""Bytes and trajectories: reading sizes, the number of trajectories that fit into them, and the memory of a mixture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from replay.base import ReplayConfig
from replay.kinds.selection import candidate_count
from replay.mixture import WHOLE, largest_share
from replay.registry import keeps_newest
from replay.ring.storage import PAGE_OVERHEAD, storage_class
from replay.trajectory import TrajectoryContract

UNITS = {
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}
LARGEST_SIZE = 10**15  # bytes; more than any machine has
SIZE = re.compile(rf"([0-9]{{1,15}}(?:\.[0-9]{{1,15}})?) ?({'|'.join(UNITS)})")


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as 8GB, 500MB or 1.5GiB. Raises ValueError with what was wanted."""
    found = SIZE.fullmatch(text)
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"a size such as 500MB, 8GB or 1.5GiB ({', '.join(UNITS)}), from 1 byte to 1000TB")
    return size


def shares(configs: Sequence[ReplayConfig], batch_size: int) -> list[int]:
    """Returns the largest number of trajectories that one batch takes from each replay."""
    total = sum(config.sample_ratio for config in configs)  # 1 within the tolerance of parsing
    return [largest_share(config.sample_ratio / total, batch_size) for config in configs]


def exact_share(configs: Sequence[ReplayConfig], index: int, batch_size: int) -> int:
    """Returns the trajectories that each batch takes from a replay of which it always takes the same number.

    Raises ValueError if the number would differ from batch to batch.
    """
    share = configs[index].sample_ratio / sum(config.sample_ratio for config in configs) * batch_size
    if abs(share - round(share)) > WHOLE or round(share) < 1:
        raise ValueError(
            f"replay_parameters[{index}]: wanted a sample_ratio by which a {configs[index].type} replay gives the same whole "
            f"number of trajectories to each batch of {batch_size}, got {configs[index].sample_ratio:g}, which gives {share:g}"
        )
    return round(share)


def wanted_capacity(config: ReplayConfig, batch_size: int) -> int:
    """Returns the trajectories that a batch takes from a replay, rounded up; the least capacity that makes sense."""
    return max(1, math.ceil(config.sample_ratio * batch_size - WHOLE))


def settle_capacities(
    configs: Sequence[ReplayConfig], contract: TrajectoryContract, batch_size: int
) -> tuple[ReplayConfig, ...]:
    """Returns the configs with the capacity filled in where `memory` is given and for circular replays.

    Queues get room for a batch's share. A capacity from `memory` is the number of trajectories that fit even if none can be
    compressed or shared. Raises ValueError if memory is too small for a batch's share.
    """
    settled = []
    for index, (config, share) in enumerate(zip(configs, shares(configs, batch_size), strict=True)):
        # A queue gives each trajectory once, so it must hold the largest share. A ring can give one trajectory twice.
        wanted = share if config.type == "queue" else wanted_capacity(config, batch_size)
        if contract.window:  # any number of windows comes out of one trajectory
            wanted = 1
        if config.memory is not None:
            if config.memory < (least := most_bytes(config, contract, wanted)):
                raise ValueError(
                    f"replay_parameters[{index}]: wanted memory for the {wanted} trajectories that a batch takes, "
                    f"{least:,} bytes, got {config.memory:,}"
                )
            # The bytes are linear in the number of trajectories. Their constant part is that of the storage's own pages.
            without, one = (most_bytes(config, contract, count) for count in (0, 1))
            config = replace(config, capacity=(config.memory - without) // (one - without))
        if config.type == "queue":
            config = replace(config, capacity=max(config.capacity, share))
        if config.type == "circular":  # and one more batch that waits
            config = replace(config, capacity=(config.slots + 1) * exact_share(configs, index, batch_size))
        settled.append(config)
    return tuple(settled)


def most_bytes(config: ReplayConfig, contract: TrajectoryContract, count: int) -> int:
    """Returns the most bytes that `count` trajectories take in this replay."""
    if config.type == "queue":
        return count * contract.bytes_per_trajectory
    return storage_class(config).most_bytes(contract, count)


def replay_bytes(
    configs: Sequence[ReplayConfig], contract: TrajectoryContract, batch_size: int, environment_count: int
) -> list[int]:
    """Returns the most bytes that each replay takes when it is full.

    A ring with `capacity` that keeps the newest trajectories stores every frame once (see `replay.ring.storage`). Only the
    oldest trajectory of each environment has first frames of its own. On a device sharing saves nothing, because memory
    for all frames is claimed at once.
    """
    sizes = []
    for config in settle_capacities(configs, contract, batch_size):
        size = most_bytes(config, contract, config.capacity)
        if config.type != "queue" and config.memory is not None:
            # Such a ring holds more trajectories than its capacity promises, until its memory is full.
            size = config.memory
        elif keeps_newest(config) and not config.compress and config.device == "cpu":
            frame_bytes = storage_class(config).layout(contract)[0] + PAGE_OVERHEAD
            shared = max(0, config.capacity - environment_count) * contract.shared_frames
            size -= shared * frame_bytes  # the first frames of all but each environment's oldest are shared
        sizes.append(size)
    return sizes


def most_compared(configs: Sequence[ReplayConfig], contract: TrajectoryContract, batch_size: int) -> int:
    """Returns the most stored trajectories that a replay reads at once to compare them with the current policy."""
    counts = [0]
    for config, share in zip(settle_capacities(configs, contract, batch_size), shares(configs, batch_size), strict=True):
        if config.insert_strategy:
            counts.append(min(config.capacity, config.elite_batch_size))
        if config.needs_encode and config.type != "standard":
            counts.append(candidate_count(config.capacity, min(share, config.capacity), config.lambda_batch_multiplier))
    return max(counts)


def device_bytes(configs: Sequence[ReplayConfig], contract: TrajectoryContract, batch_size: int) -> list[int]:
    """Returns the bytes that each replay claims on the learner's device when it is built."""
    return [
        0 if config.device == "cpu" else storage_class(config).pool_bytes(contract, config.capacity, config.memory)
        for config in settle_capacities(configs, contract, batch_size)
    ]
