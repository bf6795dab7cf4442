"""Trajectories that have a number in every field, so that a column made of two of them or of poison is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from replay import REPLAYS, Encoded, ReplayConfig, ReplayContext
from replay.base import Encode, Replay
from replay.ring.ring import Ring
from replay.trajectory import Arrays, TrajectoryContract, poison_arrays

CONTRACT = TrajectoryContract(
    unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=2, feature_count=4
)


def numbered(number: int, environment: int = 0) -> Arrays:
    """One trajectory, `[*shape]` each field; numbers from 0 to 255."""
    fields = CONTRACT.fields.items()
    trajectory = {name: np.full(shape, number % 2 if dtype == "bool" else number, dtype) for name, (shape, dtype) in fields}
    return {**trajectory, "environment_id": np.array(environment, np.int32)}


def numbers_of(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Numbers `[n]` of trajectories; every field of a column must belong to the same one."""
    numbers = columns["actions"][:, 0]
    for name, array in columns.items():
        wanted = numbers if array.dtype != bool else numbers % 2
        assert name == "environment_id" or (wanted.astype(array.dtype) == array.T).all(), name
    return numbers


def sample(replay: Replay, count: int) -> list[int]:
    """Numbers of the trajectories drawn."""
    out = CONTRACT.allocate(count, poison=True)
    replay.sample(count, out)
    return numbers_of(out).tolist()


class NumberEncoder:
    """A network whose features and logits of a trajectory are `view` of its number; counts what it is asked."""

    def __init__(self, view: Callable[[np.ndarray], np.ndarray]) -> None:
        self.view = view
        self.asked: list[list[int]] = []

    def __call__(self, trajectories: Mapping[str, np.ndarray]) -> Encoded:
        numbers = numbers_of(trajectories)
        self.asked.append(numbers.tolist())
        seen = np.asarray(self.view(numbers), np.float32)[:, None, None]
        shape = trajectories["actions"].shape
        return Encoded(
            np.broadcast_to(seen, (*shape, CONTRACT.feature_count)), np.broadcast_to(seen, (*shape, CONTRACT.action_count))
        )


def now_at(number: int) -> NumberEncoder:
    """A network that sees every state as trajectory `number` was seen when it was made: distances are |number - other|."""
    return NumberEncoder(lambda numbers: np.full(len(numbers), number))


def context(
    encode: Encode | None = None, progress: float = 0.0, min_fill: int = 1, share: int = 1, seed: int = 7
) -> ReplayContext:
    return ReplayContext(CONTRACT, share, min_fill, np.random.default_rng(seed), encode, lambda: progress)


def build(kind: str, capacity: int, written: int = 0, *, made_in: ReplayContext | None = None, **settings: Any) -> Replay:
    """A replay with poisoned memory, then `written` trajectories."""
    replay = REPLAYS[kind](ReplayConfig(kind, capacity, 1.0, **settings), made_in or context(now_at(0)))
    poison_arrays(storage_of(replay))
    for number in range(written):
        replay.insert(numbered(number))
    return replay


def ring_of(replay: Replay) -> Ring:
    return replay.ring  # type: ignore[attr-defined]


def storage_of(replay: Replay) -> Arrays:
    """Memory that nobody has written yet, of a new replay."""
    if not hasattr(replay, "ring"):
        return replay.storage  # type: ignore[attr-defined]
    storage = replay.ring.storage
    return {**storage.columns, "pages": np.asarray(storage.pool.bytes)[storage.pool.claimed :]}
