"""Builders for tests of rings: environments whose trajectories share frames, rings in every form, and checks of content."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from replay.base import Encoded, ReplayConfig
from replay.batch import stack_frames
from replay.ring.retention import make_ring
from replay.ring.ring import Ring
from replay.trajectory import Arrays, TrajectoryContract
from tests.builders import trajectory_contract
from tests.replay.support import context

RETENTIONS: list[dict[str, Any]] = [{}, {"retention": "reservoir"}, {"insert_strategy": "elite_insertion"}]


@dataclass
class Environment:
    """Makes trajectories as a worker writes them: the frames before an episode's first one are black."""

    number: int
    contract: TrajectoryContract
    generator: np.random.Generator
    reset_probability: float

    def __post_init__(self) -> None:
        self.black = [np.zeros(self.contract.frame.shape, self.contract.frame.dtype)] * self.contract.frames_stacked
        first = [*self.black[1:], self._frame()]
        self.stacks = deque([first], maxlen=self.contract.overlap + 1)  # the observations that the next trajectory repeats

    def _frame(self) -> np.ndarray:
        shape, dtype = self.contract.frame.shape, np.dtype(self.contract.frame.dtype)
        numbers = self.generator.integers(0, 3, shape)  # a frame of zeros is black
        return numbers.astype(dtype) if dtype.kind != "f" else np.where(numbers == 1, np.nan, -0.0 * numbers).astype(dtype)

    def next(self) -> Arrays:
        rows = [*self.stacks[0], *(stack[-1] for stack in list(self.stacks)[1:])]
        for _ in range(self.contract.unroll_length - len(self.stacks) + 1):
            stack = self.black if self.generator.random() < self.reset_probability else self.stacks[-1]
            self.stacks.append([*stack[1:], self._frame()])
            rows.append(self.stacks[-1][-1])
        trajectory = {
            name: self.generator.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
            for name, (shape, dtype) in self.contract.fields.items()
        }
        return {**trajectory, "frames": np.stack(rows), "environment_id": np.array(self.number, np.int32)}


def rewards_as_logits(trajectories: Any) -> Encoded:
    """A network whose features and logits of a row are its reward."""
    rewards = trajectories["rewards"][:, :, None]
    return Encoded(rewards, np.repeat(rewards, trajectories["behaviour_policy"].shape[2], axis=2))


def drawn_environments(data: st.DataObject) -> tuple[TrajectoryContract, np.random.Generator, list[Environment]]:
    """Returns any contract, a generator, and up to four environments of the contract."""
    unroll_length = data.draw(st.integers(1, 6), "unroll_length")
    contract = trajectory_contract(
        unroll_length,
        data.draw(st.sampled_from([(3,), (2, 2), (1,)]), "frame_shape"),
        data.draw(st.sampled_from(["uint8", "float32"]), "frame_dtype"),
        data.draw(st.integers(1, 4), "frames_stacked"),
        2,
    )
    contract = replace(contract, overlap=data.draw(st.integers(0, unroll_length - 1), "overlap"))
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6), "seed"))
    resets = data.draw(st.sampled_from([0.0, 0.1, 0.5]), "reset_probability")
    environments = [Environment(number, contract, generator, resets) for number in range(data.draw(st.integers(1, 4)))]
    return contract, generator, environments


def ring_of(contract: TrajectoryContract, capacity: int, *, device: torch.device | None = None, **settings: Any) -> Ring:
    """Returns a ring whose frames are kept as on a learner's device; None for host memory."""
    more = {"dist_function": "kl_policy"} if "insert_strategy" in settings else {}
    config = ReplayConfig("standard", capacity, 1.0, device="cuda" if device else "cpu", **settings, **more)
    made_in = context(rewards_as_logits, contract=contract)
    return make_ring(config, replace(made_in, device=device) if device else made_in)


def raw(array: np.ndarray | torch.Tensor) -> bytes:
    return torch.as_tensor(array).cpu().numpy().tobytes()


def check_ring(ring: Ring, offered: dict[int, Arrays]) -> None:
    """Check that stored trajectories are different ones of `offered` (number of its insert -> trajectory), byte for byte."""
    numbers = ring._inserted_at[ring.slots].tolist()
    assert len(set(numbers)) == ring.size
    read = ring.read(ring.slots)
    for column, number in enumerate(numbers):
        for name, array in offered[number].items():
            assert raw(read[name][column]) == raw(array), name


def check_window(ring: Ring, slots: np.ndarray, starts: np.ndarray | int, length: int) -> None:
    """Check that a window's stacks are the whole trajectories' stacks in those rows, and that other fields are sliced."""
    window, whole = ring.read_window(slots, starts, length), ring.read(slots)
    stack = ring.storage.frames_stacked
    assert window["frames"].shape[:2] == (len(slots), length + stack)
    shown, wanted = (stack_frames(torch.as_tensor(read["frames"]), read["reset"], stack) for read in (window, whole))
    for column, start in enumerate(np.broadcast_to(starts, slots.shape).tolist()):
        rows = slice(start, start + length)
        assert raw(shown[:, column].contiguous()) == raw(wanted[start : start + length + 1, column].contiguous())
        for name, array in window.items():
            if name == "environment_id":
                assert array[column] == whole[name][column]
            elif name != "frames":
                assert raw(array[column]) == raw(whole[name][column, rows]), name


class LightAndHeavy:
    """Makes light trajectories (black frames, which are shared and compress well) and heavy ones (new noise)."""

    contract = trajectory_contract(1, (400,), "uint8", 6, 2)

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.player = Environment(0, self.contract, self.generator, 0.0)
        self.count = 0

    def next(self, heavy: bool) -> Arrays:
        self.count += 1
        trajectory = self.player.next()
        frames = trajectory["frames"]
        trajectory["frames"] = self.generator.integers(0, 256, frames.shape, np.uint8) if heavy else np.zeros_like(frames)
        return {**trajectory, "environment_id": np.array(self.count if heavy else -(self.count % 2), np.int32)}
