"""The data contract: what one trajectory is, declared once, and how stored trajectories become a learner's batch.

A trajectory is T consecutive steps of one environment. Stores keep it as `[T, ...]`; learners see `[T, B, ...]`. Frames are
stored once: an observation is a stack of S frames of which S-1 belong to the row before already, so a trajectory keeps the
S-1 frames before its first observation and one frame for each of its T+1 observations, and `stack_frames` rebuilds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from replay.interleave import interleave

Arrays = dict[str, np.ndarray]

Signature = dict[str, list[Any]]
"""Name -> [shape, dtype] of every field of a contract, as plain data."""

Fields = Mapping[str, Any]
"""n trajectories, `[n, *shape]` each field: arrays, but for frames that lie on a device, which are a tensor there."""

POISON = {"f": np.nan, "i": -(2**30), "u": 0xA5, "b": True}
"""What debug mode writes into fresh memory, by kind of dtype, so that a row nobody wrote is seen at once."""


class Field(NamedTuple):
    """One field of a trajectory: shape without the trajectory axis, and numpy dtype name."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TrajectoryContract:
    """Name, shape and dtype of every field of one trajectory. Every store allocates by it, nobody declares a field elsewhere.

    unroll_length: T. frame_shape: one frame. frames_stacked: S. action_count: A. feature_count: F, 0 where no replay in use
    compares features.
    """

    unroll_length: int
    frame_shape: tuple[int, ...]
    frame_dtype: str
    frames_stacked: int
    action_count: int
    feature_count: int = 0

    @property
    def fields(self) -> dict[str, Field]:
        steps = (self.unroll_length,)
        features = {"behaviour_features": Field((*steps, self.feature_count), "float32")} if self.feature_count else {}
        return {
            # S-1 frames before the first observation, then the newest frame of each of the T+1 observations.
            "frames": Field((self.unroll_length + self.frames_stacked, *self.frame_shape), self.frame_dtype),
            "actions": Field(steps, "int64"),
            "rewards": Field(steps, "float32"),  # raw; clipping is the learner's business
            "terminated": Field(steps, "bool"),  # no value beyond this step
            "truncated": Field(steps, "bool"),  # a time limit: the next row still holds the episode's own final observation
            "reset": Field(steps, "bool"),  # an autoreset: the next observation is an episode's first
            "action_used": Field(steps, "bool"),  # false: the environment ignored this action; the learner leaves the step out
            "behaviour_logits": Field((*steps, self.action_count), "float32"),
            "behaviour_values": Field(steps, "float32"),
            **features,  # what the acting network's feature layer made of each observation that was acted on
            "policy_version": Field(steps, "int64"),  # updates the acting policy had seen
            "episode_return": Field(steps, "float32"),  # raw, whole episode, at its last step; NaN elsewhere
            "episode_length": Field(steps, "int32"),  # steps, at the episode's last step; 0 elsewhere
            "environment_id": Field((), "int32"),  # which environment of the run it comes from
        }

    def signature(self) -> Signature:
        """Returns [shape, dtype] of every field: the only thing by which files identify a contract."""
        return {name: [list(field.shape), field.dtype] for name, field in self.fields.items()}

    @property
    def bytes_per_trajectory(self) -> int:
        return sum(int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize for field in self.fields.values())

    def allocate(self, count: int, *, poison: bool = False) -> Arrays:
        """Private arrays for `count` trajectories, `[count, *shape]` each; memory is claimed as rows are written."""
        arrays = {name: np.empty((count, *field.shape), field.dtype) for name, field in self.fields.items()}
        if poison:
            poison_arrays(arrays)
        return arrays


def poison_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Fill with absurd values that no environment or policy writes."""
    for array in arrays.values():
        array.fill(POISON[array.dtype.kind])


DeviceFrames = Sequence[tuple[int, Tensor]]
"""Parts of a batch's frames that lie on the learner's device: the first column of each, and `[n, T+S, *F]`; in order."""


@dataclass(frozen=True)
class Batch:
    """B trajectories on the learner's device, time-major.

    observations `[T+1, B, S, *frame_shape]`; behaviour_logits `[T, B, A]`; everything else `[T, B]`, but for
    is_replay (bool, from a replay that gives trajectories more than once) and source (index of the replay in the
    mixture), both `[B]`.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    action_used: Tensor
    behaviour_logits: Tensor
    behaviour_values: Tensor
    policy_version: Tensor
    is_replay: Tensor
    source: Tensor

    @property
    def unroll_length(self) -> int:
        return self.actions.shape[0]

    @property
    def batch_size(self) -> int:
        return self.actions.shape[1]


TIME_MAJOR_FIELDS = (
    "actions",
    "rewards",
    "terminated",
    "truncated",
    "action_used",
    "behaviour_logits",
    "behaviour_values",
    "policy_version",
)


def make_batch(
    columns: Mapping[str, np.ndarray],
    is_replay: np.ndarray,
    source: np.ndarray,
    frames_stacked: int,
    device: torch.device,
    device_frames: DeviceFrames = (),
) -> Batch:
    """Turn B stored trajectories (`[B, *shape]` each) into a batch on `device`: the only place where axes are swapped.

    device_frames: those that lie there already, in place of the same rows of `columns["frames"]`.
    """
    moved = {name: torch.from_numpy(columns[name]).to(device, non_blocking=True).transpose(0, 1) for name in TIME_MAJOR_FIELDS}
    frames = _join_frames(torch.from_numpy(columns["frames"]), device_frames, device)
    return Batch(
        observations=stack_frames(frames, columns["reset"], frames_stacked),
        is_replay=torch.from_numpy(is_replay).to(device, non_blocking=True),
        source=torch.from_numpy(source).to(device, non_blocking=True),
        **moved,
    )


def _join_frames(host: Tensor, device_frames: DeviceFrames, device: torch.device) -> Tensor:
    """All frames of a batch on the device, `[B, T+S, *F]`; only those that are not there yet go up."""
    if not device_frames:
        return host.to(device, non_blocking=True)
    parts, end = [], 0
    for first, frames in device_frames:
        if frames.is_cuda:  # its memory came from a replay's stream, which must not use it again before this one has read it
            frames.record_stream(torch.cuda.current_stream(frames.device))
        parts += [host[end:first].to(device, non_blocking=True), frames]
        end = first + len(frames)
    return torch.cat([*parts, host[end:].to(device, non_blocking=True)])


def stack_frames(frames: Tensor, reset: np.ndarray, frames_stacked: int) -> Tensor:
    """Rebuild every observation from frames stored once.

    frames: `[B, T+S, *F]`, any device. reset: bool `[B, T]` on the host; true where observation t+1 is an episode's first.
    Returns `[T+1, B, S, *F]`, newest frame last, zeros before an episode's first frame. In memory the stack is the innermost
    axis, which for `[H, W]` frames is torch's channels_last: no second copy before the first convolution.
    """
    batch_size, rows = frames.shape[0], frames.shape[1] - frames_stacked + 1
    innermost = frames.new_empty((rows, batch_size, *frames.shape[2:], frames_stacked))
    if frames.device.type == "cpu":
        _interleave_rows(frames.numpy(), innermost.numpy())
    else:
        for position in range(frames_stacked):
            innermost[..., position] = frames[:, position : position + rows].transpose(0, 1)
    row, column, missing = _before_first_frame(reset, frames_stacked)
    if len(row):
        hidden = np.arange(frames_stacked) < missing[:, None]  # [n, S]
        hidden = hidden.reshape(len(row), *(1 for _ in frames.shape[2:]), frames_stacked)
        row, column = torch.from_numpy(np.stack([row, column])).to(frames.device, non_blocking=True)
        mask = torch.from_numpy(hidden).to(frames.device, non_blocking=True)
        innermost[row, column] = innermost[row, column].masked_fill(mask, 0)
    return innermost.movedim(-1, 2)


def _interleave_rows(frames: np.ndarray, innermost: np.ndarray) -> None:
    """Fill `[T+1, B, *F, S]` from frames `[B, T+S, *F]`."""
    stack, pixels = innermost.shape[-1], int(np.prod(frames.shape[2:]))
    frames = frames.reshape(*frames.shape[:2], pixels)
    for row, out in enumerate(innermost.reshape(*innermost.shape[:2], pixels, stack)):
        interleave([frames[:, row + position] for position in range(stack)], out)


def hidden_frames(reset: np.ndarray, frames_stacked: int) -> np.ndarray:
    """Which frames of the observation that the last step acted on are from before its episode.

    reset: bool `[B, T]`; the last S steps of it will do. Returns bool `[B, S]`.
    """
    row, column, missing = _before_first_frame(reset, frames_stacked)
    last = row == reset.shape[1] - 1
    hidden = np.zeros((len(reset), frames_stacked), bool)
    hidden[column[last]] = np.arange(frames_stacked) < missing[last][:, None]
    return hidden


def _before_first_frame(reset: np.ndarray, frames_stacked: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which stacks reach back beyond their episode: row in `[T+1]`, column in `[B]`, and how many frames are missing."""
    unroll_length = reset.shape[1]
    age = np.full(reset.shape[0], frames_stacked)  # observations since the episode's first one, as far as it matters
    found = []
    for row in range(1, unroll_length + 1) if reset.any() else ():
        age = np.where(reset[:, row - 1], 0, age + 1)
        columns = np.flatnonzero(age < frames_stacked - 1)
        found.append(np.stack([np.full(len(columns), row), columns, frames_stacked - 1 - age[columns]]))
    affected = np.concatenate(found, axis=1) if found else np.zeros((3, 0), np.int64)
    return affected[0], affected[1], affected[2]
