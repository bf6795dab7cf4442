"""The data contract: the fields of one trajectory, declared once.

A trajectory is T consecutive steps of one environment. Stores keep it as `[T, ...]`; `replay/batch.py` makes `[T, B, ...]` of
it. Frames are stored once. An observation is a stack of S frames, and S-1 of them belong to the row before already. So a
trajectory keeps the S-1 frames before its first observation and one frame for each of its T+1 observations.

With burn-in a trajectory begins with the last rows of the one before it, of the same environment. T counts these rows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]

FEATURES = "behaviour_features"
"""Field of the acting network's features, which some replays compare with those of the current network."""

RETURNS = "discounted_returns"
"""Field of the discounted rewards of the episode so far, if rewards are normalised."""

EPISODE_RETURN = "episode_return"
"""Field of the raw return of an episode at its last step, NaN elsewhere."""

RECURRENT_STATE = "recurrent_state"
"""Field of the acting network's recurrent state, stored once: as it was before row 0."""

RETURN_FIELDS = ("rewards", "action_used", "terminated", "truncated", RETURNS)
"""Fields from which `discount_returns` computes, and the field that it fills."""

ENVIRONMENT_ID = "environment_id"
"""Field of the number of the environment in the run, stored once."""

WITHOUT_ROWS = (RECURRENT_STATE, ENVIRONMENT_ID)
"""Fields that belong to a whole trajectory."""

Signature = dict[str, list[Any]]
"""Name -> [shape, dtype] of every field of a contract, as plain data."""

Fields = Mapping[str, Any]
"""n trajectories, `[n, *shape]` each field: arrays, except that frames on a device are a tensor there."""

POISON = {"f": np.nan, "i": -(2**30), "u": 0xA5, "b": True}
"""Value that debug mode writes into fresh memory, by kind of dtype, so that an unwritten row is seen at once."""


class Field(NamedTuple):
    """Shape and numpy dtype name of an array. In a contract it is one trajectory's field, without an axis for trajectories."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TrajectoryContract:
    """Name, shape and dtype of every field of one trajectory. Every store is allocated from it.

    Args:
        unroll_length: T.
        frames_stacked: S.
        frame: one frame of an observation.
        action: one action.
        acting: name -> field that acting stores for each step with the action (`agents.acting.Acting`).
        feature_count: F, the size of the network's last hidden layer; 0 if no replay in use compares features.
        return_discount: discount of the returns so far, which the scale of rewards is learned from; None to store none.
        state_size: K, numbers of the network's recurrent state; 0 for a network without a core.
        overlap: rows at the beginning that only rebuild the recurrent state. They repeat the end of the trajectory before it,
            except in an environment's first trajectory, which has no other before it.
        window: rows of the windows that batches are made of; 0 for batches of whole trajectories.
        episodes: whether batches hold the returns of episodes.
        environments: whether batches of whole trajectories hold the numbers of their environments.
    """

    unroll_length: int
    frames_stacked: int
    frame: Field
    action: Field
    acting: Mapping[str, Field]
    feature_count: int = 0
    return_discount: float | None = None
    state_size: int = 0
    overlap: int = 0
    window: int = 0
    episodes: bool = False
    environments: bool = False

    @property
    def of_batch(self) -> TrajectoryContract:
        """The contract of a batch's columns: that of whole trajectories, or of windows as short trajectories."""
        return replace(self, unroll_length=self.window, window=0) if self.window else self

    @property
    def fresh_steps(self) -> int:
        """Steps of a trajectory that the trajectory before it does not contain."""
        return self.unroll_length - self.overlap  # rows of burn-in were in the trajectory before

    @property
    def policy_fields(self) -> dict[str, Field]:
        """The fields that a policy returns for one environment with the action."""
        features = {FEATURES: Field((self.feature_count,), "float32")} if self.feature_count else {}
        return {**self.acting, **features}

    @property
    def fields(self) -> dict[str, Field]:
        steps = (self.unroll_length,)
        # Zeros where row 0 is an episode's first. It has no rows, so a window of rows must start at row 0.
        recurrent = {RECURRENT_STATE: Field((self.state_size,), "float32")} if self.state_size else {}
        return {
            # S-1 frames before the first observation, then the newest frame of each of the T+1 observations.
            "frames": Field((self.unroll_length + self.frames_stacked, *self.frame.shape), self.frame.dtype),
            "actions": Field((*steps, *self.action.shape), self.action.dtype),
            "rewards": Field(steps, "float32"),  # raw; the learner clips
            "terminated": Field(steps, "bool"),  # no value beyond this step
            "truncated": Field(steps, "bool"),  # a time limit: the next row still holds the episode's own final observation
            "reset": Field(steps, "bool"),  # an autoreset: the next observation is an episode's first
            "action_used": Field(steps, "bool"),  # false: the environment replaced or ignored this action
            # Discounted rewards of the episode so far, also of rows before this trajectory.
            **({} if self.return_discount is None else {RETURNS: Field(steps, "float32")}),
            **{name: Field((*steps, *shape), dtype) for name, (shape, dtype) in self.policy_fields.items()},
            "policy_version": Field(steps, "int64"),  # updates that the acting policy had seen
            EPISODE_RETURN: Field(steps, "float32"),  # raw, whole episode, at its last step; NaN elsewhere
            "episode_length": Field(steps, "int32"),  # steps, at the episode's last step; 0 elsewhere
            ENVIRONMENT_ID: Field((), "int32"),  # the environment of the run that it comes from
            **recurrent,
        }

    def signature(self) -> Signature:
        """Returns [shape, dtype] of every field: the only thing by which files identify a contract."""
        return {name: [list(field.shape), field.dtype] for name, field in self.fields.items()}

    @property
    def batch_fields(self) -> tuple[str, ...]:
        """The fields that go to the learner's device as they are."""
        returns = () if self.return_discount is None else (RETURNS,)
        episodes = (EPISODE_RETURN,) if self.episodes else ()
        return ("actions", "rewards", "terminated", "reset", "action_used", *returns, *episodes, *self.acting)

    @property
    def shared_frames(self) -> int:
        """The number of frames that a trajectory begins with and the one before it ends with: S, and one a row of burn-in."""
        return self.frames_stacked + self.overlap

    @property
    def bytes_per_trajectory(self) -> int:
        return sum(int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize for field in self.fields.values())

    def allocate_batch(self, count: int) -> Arrays:
        """Private arrays for `count` columns of a batch, `[count, *shape]` each; of windows only what a learner reads."""
        if not self.window:
            return self.allocate(count)
        contract = self.of_batch
        # No loss reads `policy_version`; the metric of policy lag does.
        wanted = ("frames", *contract.batch_fields, "policy_version")
        return {name: np.empty((count, *contract.fields[name].shape), contract.fields[name].dtype) for name in wanted}

    def allocate(self, count: int, *, poison: bool = False) -> Arrays:
        """Private arrays for `count` trajectories, `[count, *shape]` each. Memory is claimed as slots are written."""
        arrays = {name: np.empty((count, *field.shape), field.dtype) for name, field in self.fields.items()}
        if poison:
            poison_arrays(arrays)
        return arrays


def poison_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Fill with absurd values that no environment or policy writes."""
    for array in arrays.values():
        array.fill(POISON[array.dtype.kind])


def discount_returns(rows: Arrays, returns: np.ndarray, discount: float) -> np.ndarray:
    """Fill the discounted rewards of the episode so far, R_t = discount * R_{t-1} + r_t, of N trajectories.

    A row whose action was ignored adds nothing, and an episode begins with 0, also after a truncated one.

    Args:
        rows: fields of the trajectories, `[N, T]` each.
        returns: float64 `[N]`, before row 0.
        discount: per step.

    Returns what row 0 of the next trajectories continues from, float64 `[N]`.
    """
    for t in range(rows["rewards"].shape[1]):
        # R_t = gamma R_{t-1} + r_t, [N]
        returns = np.where(rows["action_used"][:, t], discount * returns + rows["rewards"][:, t], returns)
        rows[RETURNS][:, t] = returns  # before it is cleared: the last step of an episode has its whole return
        returns = np.where(rows["terminated"][:, t] | rows["truncated"][:, t], 0.0, returns)  # a new episode begins at 0
    return returns
