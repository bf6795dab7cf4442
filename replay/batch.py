"""Stored trajectories become a learner's batch here: axes are swapped, frames become stacks, and all goes to the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from replay.interleave import interleave
from replay.priorities.priorities import Tickets
from replay.trajectory import ENVIRONMENT_ID, RECURRENT_STATE, Arrays, TrajectoryContract

DeviceFrames = Sequence[tuple[int, Tensor]]
"""Parts of a batch's frames that lie on the learner's device, in order: the first column of each, and frames `[n, T+S, *F]`."""


InitialErrors = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Takes a new trajectory (`[*shape]` each field) and returns its absolute TD errors, from the values stored while acting: `[T]`
for each row, or `[1]` for the whole trajectory. NaN where an error is not known."""

BatchTickets = Sequence[tuple[int, int, Tickets]]
"""For each replay with priorities: its index in the mixture, its first column, and the tickets of its columns, in order."""


@dataclass(frozen=True)
class HostBatch:
    """B trajectories in host memory, `[B, *shape]` each field; is_replay and source `[B]`.

    device_frames: frames of replays that keep them on the learner's device. The same columns of `columns["frames"]` are
    unwritten. weights: float32 `[B]`, see `Batch`. tickets: the places that columns were drawn from, for an update of their
    priorities.
    """

    columns: Arrays
    is_replay: np.ndarray
    source: np.ndarray
    device_frames: DeviceFrames = ()
    weights: np.ndarray | None = None
    tickets: BatchTickets = ()


@dataclass(frozen=True)
class Batch:
    """B trajectories on the learner's device, time-major. `TrajectoryContract.fields` says what each field means.

    observations: `[T+1, B, S, *frame_shape]`; row T follows the last step.
    actions: `[T, B, *action_shape]`.
    rewards, terminated, reset, action_used: `[T, B]`.
    acting: name -> `[T, B, *shape]`, the fields that the agent's `acting` declares.
    is_replay: bool `[B]`, whether the column's trajectory may have been in an earlier batch.
    source: int `[B]`, index of the column's replay in the mixture.
    discounted_returns: float32 `[T, B]`, discounted rewards of the episode so far; None unless the contract has a discount.
    episode_return: float32 `[T, B]`, the raw return of a whole episode at its last step, NaN elsewhere; None unless the
    contract asks for episodes.
    recurrent_state: float32 `[B, K]`, before row 0; None without a core.
    overlap: rows at the beginning that only rebuild the recurrent state (burn-in).
    weights: float32 `[B]`, importance weights of the columns, at most 1; None unless a replay draws by priorities.
    whole: the same with its rows of burn-in, if they have been cut off.
    environment_id: int `[B]`, the environment of each column; None unless the contract asks for it.
    intrinsic_rewards: float32 `[T, B]`, scaled; None without any. predictor_rows: int64 `[steps, n]`, rows t * B + b that the
    module behind them learns from in each step of the update.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    reset: Tensor
    action_used: Tensor
    acting: Mapping[str, Tensor]
    is_replay: Tensor
    source: Tensor
    discounted_returns: Tensor | None = None
    episode_return: Tensor | None = None
    recurrent_state: Tensor | None = None
    overlap: int = 0
    weights: Tensor | None = None
    whole: Batch | None = None
    environment_id: Tensor | None = None
    intrinsic_rewards: Tensor | None = None
    predictor_rows: Tensor | None = None

    def without_overlap(self) -> Batch:
        """The rows that are learned from. No loss, metric or statistic sees the others; the network's passes take `whole`."""
        if not self.overlap:
            return self
        steps = ("actions", "rewards", "terminated", "reset", "action_used")
        returns, episodes = self.discounted_returns, self.episode_return
        return replace(
            self,
            observations=self.observations[self.overlap :],
            acting={name: field[self.overlap :] for name, field in self.acting.items()},
            discounted_returns=None if returns is None else returns[self.overlap :],
            episode_return=None if episodes is None else episodes[self.overlap :],
            recurrent_state=None,  # that of row 0 is not the state before the first row left
            overlap=0,
            whole=self,
            **{name: getattr(self, name)[self.overlap :] for name in steps},
        )

    def take_columns(self, columns: Tensor) -> Batch:
        """Some columns of the batch, as a batch. columns: int64 `[n]`."""
        if self.whole is not None:  # the rows that are learned from are a view of all rows, and their rewards may be scaled
            part = self.whole.take_columns(columns).without_overlap()
            intrinsic = None if self.intrinsic_rewards is None else self.intrinsic_rewards.index_select(1, columns)
            return replace(part, rewards=self.rewards.index_select(1, columns), intrinsic_rewards=intrinsic)

        def taken(field: Tensor) -> Tensor:
            return field.index_select(1, columns)  # [T, B, ...] -> [T, n, ...]

        steps = ("actions", "rewards", "terminated", "reset", "action_used")
        returns, episodes, state = self.discounted_returns, self.episode_return, self.recurrent_state
        return replace(
            self,
            observations=taken(self.observations.movedim(2, -1)).movedim(-1, 2),  # the stack stays innermost in memory
            acting={name: taken(field) for name, field in self.acting.items()},
            is_replay=self.is_replay[columns],
            source=self.source[columns],
            discounted_returns=None if returns is None else taken(returns),
            episode_return=None if episodes is None else taken(episodes),
            recurrent_state=None if state is None else state[columns],
            weights=None if self.weights is None else self.weights[columns],
            environment_id=None if self.environment_id is None else self.environment_id[columns],
            intrinsic_rewards=None if self.intrinsic_rewards is None else taken(self.intrinsic_rewards),
            **{name: taken(getattr(self, name)) for name in steps},  # type: ignore[arg-type]
        )


def make_batch(host: HostBatch, contract: TrajectoryContract, device: torch.device) -> Batch:
    """Turn B stored trajectories into a batch on `device`. No other place swaps the axes."""

    def up(array: np.ndarray) -> Tensor:
        # The transfer may still run after this returns: page-locked memory is reused only behind a fence (`HostBuffers`).
        return torch.from_numpy(array).to(device, non_blocking=True)

    # [B, T, ...] -> [T, B, ...], a view
    fields = {name: up(host.columns[name]).transpose(0, 1) for name in contract.batch_fields}
    acting = {name: fields.pop(name) for name in contract.acting}
    frames = _join_frames(torch.from_numpy(host.columns["frames"]), host.device_frames, device)
    return Batch(
        observations=stack_frames(frames, host.columns["reset"], contract.frames_stacked),
        acting=acting,
        is_replay=up(host.is_replay),
        source=up(host.source),
        recurrent_state=up(host.columns[RECURRENT_STATE]) if contract.state_size else None,
        overlap=contract.overlap,
        weights=None if host.weights is None else up(host.weights),
        environment_id=up(host.columns[ENVIRONMENT_ID]) if contract.environments else None,
        **fields,  # type: ignore[arg-type]
    )


def _join_frames(host: Tensor, device_frames: DeviceFrames, device: torch.device) -> Tensor:
    """All frames of a batch on the device, `[B, T+S, *F]`. Only frames that are not there yet are copied."""
    if not device_frames:
        return host.to(device, non_blocking=True)
    parts, end = [], 0
    for first, frames in device_frames:
        if frames.is_cuda:  # a replay's stream allocated it, and must not reuse it before this stream has read it
            frames.record_stream(torch.cuda.current_stream(frames.device))
        # Columns keep their order: those of the host before these, then these.
        parts += [host[end:first].to(device, non_blocking=True), frames]
        end = first + len(frames)
    return torch.cat([*parts, host[end:].to(device, non_blocking=True)])


def stack_frames(frames: Tensor, reset: np.ndarray, frames_stacked: int) -> Tensor:
    """Rebuild every observation from frames stored once.

    frames: `[B, T+S, *F]`, any device. reset: bool `[B, T]` on the host; true where observation t+1 is an episode's first.
    Returns `[T+1, B, S, *F]`, newest frame last, zeros before an episode's first frame. In memory the stack is the innermost
    axis, which for `[H, W]` frames is torch's channels_last: no second copy before the first convolution.
    """
    batch_size, rows = frames.shape[0], frames.shape[1] - frames_stacked + 1  # rows: T+1
    innermost = frames.new_empty((rows, batch_size, *frames.shape[2:], frames_stacked))  # [T+1, B, *F, S]
    if frames.device.type == "cpu":
        _interleave_rows(frames.numpy(), innermost.numpy())
    else:
        for position in range(frames_stacked):
            innermost[..., position] = frames[:, position : position + rows].transpose(0, 1)  # frame `position` of each stack
    # The host finds the few affected stacks, so it does not wait for a number from the device.
    row, column, missing = _before_first_frame(reset, frames_stacked)
    if len(row):
        hidden = np.arange(frames_stacked) < missing[:, None]  # [n, S]
        hidden = hidden.reshape(len(row), *(1 for _ in frames.shape[2:]), frames_stacked)
        row, column = torch.from_numpy(np.stack([row, column])).to(frames.device, non_blocking=True)
        mask = torch.from_numpy(hidden).to(frames.device, non_blocking=True)  # [n, 1, .., S]
        innermost[row, column] = innermost[row, column].masked_fill(mask, 0)
    return innermost.movedim(-1, 2)  # a view [T+1, B, S, *F]


def _interleave_rows(frames: np.ndarray, innermost: np.ndarray) -> None:
    """Fill `[T+1, B, *F, S]` from frames `[B, T+S, *F]`."""
    stack, pixels = innermost.shape[-1], int(np.prod(frames.shape[2:]))  # S, P
    frames = frames.reshape(*frames.shape[:2], pixels)
    for row, out in enumerate(innermost.reshape(*innermost.shape[:2], pixels, stack)):
        interleave([frames[:, row + position] for position in range(stack)], out)  # S planes [B, P] to [B, P, S]


def hidden_frames(reset: np.ndarray, frames_stacked: int) -> np.ndarray:
    """Return which frames of the observation that the last step acted on are from before its episode.

    reset: bool `[B, T]`; the last S steps of it will do. Returns bool `[B, S]`.
    """
    row, column, missing = _before_first_frame(reset, frames_stacked)
    last = row == reset.shape[1] - 1  # row T-1, whose observation the last step acted on
    hidden = np.zeros((len(reset), frames_stacked), bool)
    hidden[column[last]] = np.arange(frames_stacked) < missing[last][:, None]
    return hidden


def _before_first_frame(reset: np.ndarray, frames_stacked: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the stacks that reach back beyond their episode: row in `[T+1]`, column in `[B]`, and number of missing frames."""
    unroll_length = reset.shape[1]
    # Row 0 counts as old: its frames from before an episode were black when they were stored.
    age = np.full(reset.shape[0], frames_stacked)  # observations since the episode's first one, as far as it matters
    found = []
    for row in range(1, unroll_length + 1) if reset.any() else ():
        age = np.where(reset[:, row - 1], 0, age + 1)  # reset[t - 1]: observation t is an episode's first
        columns = np.flatnonzero(age < frames_stacked - 1)  # a stack of age a has only a + 1 frames of its episode
        found.append(np.stack([np.full(len(columns), row), columns, frames_stacked - 1 - age[columns]]))
    affected = np.concatenate(found, axis=1) if found else np.zeros((3, 0), np.int64)
    return affected[0], affected[1], affected[2]  # [n] each
