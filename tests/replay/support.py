"""Builders for tests of replays: trajectories with a number in every field, networks that see numbers, replays and mixtures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay import REPLAYS, Encoded, Mixture, ReplayConfig, ReplayContext, make_mixture
from replay.base import Encode, Replay
from replay.batch import HostBatch
from replay.ring.ring import Ring
from replay.trajectory import Arrays, TrajectoryContract, poison_arrays
from tests.builders import trajectory_contract

ACTIONS = 2
CONTRACT = trajectory_contract(
    unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=1, action_count=ACTIONS, feature_count=4
)
"""Of numbered trajectories. With one frame in a stack, no frame of a window is black."""

STACKED_CONTRACT = trajectory_contract(
    unroll_length=2, frame_shape=(3,), frame_dtype="uint8", frames_stacked=2, action_count=ACTIONS, feature_count=4
)
"""Of trajectories from a `Source`, which share frames."""

Settings = dict[str, Any]

KINDS: dict[str, tuple[str, Settings]] = {
    "queue": ("queue", {}),
    "standard": ("standard", {}),
    "reservoir": ("standard", {"retention": "reservoir"}),
    **{f"elite_{number}": ("elite", {"elite_sampling_strategy": f"strategy{number}"}) for number in (1, 2, 3, 4)},
    "elite_kl_policy": ("elite", {"dist_function": "kl_policy"}),
    "elite_cos_dist": ("elite", {"dist_function": "cos_dist"}),
    "elite_kl_div": ("elite", {"dist_function": "kl_div"}),
    "elite_inserting": ("elite", {"insert_strategy": "elite_insertion"}),
    "attentive": ("attentive", {}),
    "attentive_kl_policy": ("attentive", {"dist_function": "kl_policy"}),
    "inserting": ("standard", {"insert_strategy": "elite_insertion"}),
    "attentive_inserting": ("attentive", {"insert_strategy": "elite_insertion"}),
}
"""Name -> type and settings of a replay."""

FORMS: dict[str, Settings] = {
    "capacity": {"capacity": 20},
    "memory": {"capacity": 0, "memory": 15_000},
    "compressed": {"capacity": 20, "compress": True},
    "compressed_memory": {"capacity": 0, "memory": 30_000, "compress": True},
}
"""Name -> size and form of a ring."""


def numbered(number: int, environment: int = 0, contract: TrajectoryContract = CONTRACT) -> Arrays:
    """Returns one trajectory, `[*shape]` each field, that has its number in every field. number: from 0 to 255."""
    fields = contract.fields.items()
    trajectory = {name: np.full(shape, number % 2 if dtype == "bool" else number, dtype) for name, (shape, dtype) in fields}
    return {**trajectory, "environment_id": np.array(environment, np.int32)}


def numbers_of(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the numbers `[n]` of trajectories. Every field and row of a trajectory must have the same number."""
    numbers = columns["actions"][:, 0]
    for name, array in columns.items():
        wanted = numbers if array.dtype != bool else numbers % 2
        assert name == "environment_id" or (wanted.astype(array.dtype) == array.T).all(), (name, numbers)
    return numbers


def sample(replay: Replay, count: int) -> list[int]:
    """Returns the numbers of the trajectories drawn."""
    out = CONTRACT.allocate(count, poison=True)
    replay.sample(count, out)
    return numbers_of(out).tolist()


class NumberEncoder:
    """A network whose features and logits of a trajectory are `view(number)`. `asked` records the numbers of each call."""

    def __init__(self, view: Callable[[np.ndarray], np.ndarray]) -> None:
        self.view = view
        self.asked: list[list[int]] = []

    def __call__(self, trajectories: Mapping[str, np.ndarray]) -> Encoded:
        numbers = numbers_of(trajectories)
        self.asked.append(numbers.tolist())
        seen = np.asarray(self.view(numbers), np.float32)[:, None, None]
        shape = trajectories["actions"].shape
        return Encoded(
            np.broadcast_to(seen, (*shape, CONTRACT.feature_count)),
            np.broadcast_to(seen, (*shape, ACTIONS)),
        )


def now_at(number: int) -> NumberEncoder:
    """Returns a network with the policy that acted in trajectory `number`: distances are |number - other|."""
    return NumberEncoder(lambda numbers: np.full(len(numbers), number))


def first_reward(trajectories: Mapping[str, np.ndarray]) -> Encoded:
    """A network whose features and logits of a trajectory are its first reward."""
    rewards = np.repeat(trajectories["rewards"][:, :1, None], trajectories["rewards"].shape[1], axis=1)
    return Encoded(*(np.repeat(rewards, width, axis=2) for width in (CONTRACT.feature_count, ACTIONS)))


def context(
    encode: Encode | None = None,
    progress: float = 0.0,
    min_fill: int = 1,
    share: int = 1,
    seed: int = 7,
    contract: TrajectoryContract = CONTRACT,
) -> ReplayContext:
    return ReplayContext(contract, share, min_fill, np.random.default_rng(seed), encode, lambda: progress)


def build(kind: str, capacity: int, written: int = 0, *, made_in: ReplayContext | None = None, **settings: Any) -> Replay:
    """Returns a replay with poisoned memory, into which `written` trajectories were inserted."""
    replay = REPLAYS[kind](ReplayConfig(kind, capacity, 1.0, **settings), made_in or context(now_at(0)))
    poison_arrays(storage_of(replay))
    for number in range(written):
        replay.insert(numbered(number))
    return replay


def ring_of(replay: Replay) -> Ring:
    return replay.ring  # type: ignore[attr-defined]


def storage_of(replay: Replay) -> Arrays:
    """Returns the memory of a new replay that is not written yet."""
    if not hasattr(replay, "ring"):
        return replay.storage  # type: ignore[attr-defined]
    storage = replay.ring.storage
    return {**storage.columns, "pages": np.asarray(storage.pool.bytes)[storage.pool.claimed :]}


class Source:
    """Random trajectories of three environments. Each begins with the frames with which the one before it ended."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.last_frames: dict[int, np.ndarray] = {}

    def next(self) -> Arrays:
        environment = int(self.generator.integers(3))
        trajectory = {
            name: self.generator.integers(0, 2 if dtype == "bool" else 200, shape).astype(dtype)
            for name, (shape, dtype) in STACKED_CONTRACT.fields.items()
        }
        stack = STACKED_CONTRACT.frames_stacked
        if environment in self.last_frames:
            trajectory["frames"][:stack] = self.last_frames[environment]
        self.last_frames[environment] = trajectory["frames"][-stack:].copy()
        return {**trajectory, "environment_id": np.array(environment, np.int32)}


def mixture_with_queue(
    name: str, form: str, seed: int = 1, *, device: torch.device | None = None, replay_first: bool = True, **changes: Any
) -> Mixture:
    """Returns a mixture of the replay `KINDS[name]` in the form `FORMS[form]` and a queue, for trajectories of a `Source`.

    device: where the replay's frames are kept as on a learner's device; None for host memory.
    """
    kind, settings = KINDS[name]
    size = {"capacity": 9} if kind == "queue" else {**FORMS[form], "device": "cuda" if device else "cpu"}
    configs = [ReplayConfig(kind, sample_ratio=0.6, **{**size, **settings, **changes}), ReplayConfig("queue", 12, 0.4)]
    generator = np.random.default_rng(seed)
    return make_mixture(
        configs if replay_first else configs[::-1],
        *(STACKED_CONTRACT, 5, 0.2, generator),
        encode=first_reward,
        device=device or torch.device("cpu"),
    )


def insert_and_sample(mixture: Mixture, source: Source, inserts: int) -> HostBatch | None:
    """Insert some trajectories. Returns a batch if one can be drawn."""
    for _ in range(inserts):
        mixture.insert(source.next())
    return mixture.sample() if mixture.can_sample() else None


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state after it was saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resident_bytes() -> int:
    """The memory that this process takes at present."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))
