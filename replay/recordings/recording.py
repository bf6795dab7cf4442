"""Reads recordings, and cuts them into trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checked_files import checked, is_plain_name, read_json
from replay.recordings.stream import FRAME, STEP_FIELDS, check_field, read_stream
from replay.trajectory import (
    EPISODE_RETURN,
    RECURRENT_STATE,
    RETURN_FIELDS,
    RETURNS,
    Field,
    TrajectoryContract,
    discount_returns,
)

INDEX = "recording.json"
FORMAT = 1
INDEX_KEYS = {"format": int, "spec": dict, "distribution": str, "about": list, "streams": dict}
SPEC_KEYS = {"env": str, "frame_shape": list, "frame_dtype": str, "action": dict, "leaves": list}
STREAM_KEYS = {"steps": int, "episodes": int, "mean_return": float}


@dataclass(frozen=True)
class Recording:
    """The streams of one or several recordings of an environment.

    streams: records `[n + 1]` of each, see `replay.recordings.stream`. paths: their files. stream_episodes: how many each has.
    spec: the environment as plain data. distributions: from which the actions were drawn. steps, episodes, mean_return: of all
    streams together.
    """

    streams: tuple[np.ndarray, ...]
    paths: tuple[Path, ...]
    stream_episodes: tuple[int, ...]
    spec: Mapping[str, Any]
    distributions: tuple[str, ...]
    steps: int
    episodes: int
    mean_return: float


def read_index(folder: Path) -> dict[str, Any]:
    """The index of the recording in a folder. Raises ValueError in one line."""
    path, what = folder / INDEX, "the index of a recording"
    index = read_json(path, what, {"format": int})
    if index["format"] != FORMAT:
        raise ValueError(f"{path}: wanted format {FORMAT} of a recording, got {index['format']}")
    checked(index, f"{path}: wanted {what}", INDEX_KEYS)
    checked(index["spec"], f"{path}: wanted the spec of an environment", SPEC_KEYS)
    for name, found in index["streams"].items():
        if not is_plain_name(name):
            raise ValueError(f"{path}: wanted the names of files in its folder as streams, got {name[:80]!a}")
        checked(found, f"{path}: wanted the size of {name}", STREAM_KEYS)
        if min(found["steps"], found["episodes"]) < 1:
            raise ValueError(f"{path}: wanted whole episodes in {name}, got {found['steps']} steps of {found['episodes']}")
    return index


def open_recording(folder: Path) -> Recording:
    """All recordings in a folder and in the folders below it. Raises ValueError in one line, or OSError."""
    found = (path for path in folder.rglob(INDEX) if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    folders = sorted(path.parent for path in found)  # hidden ones are being made
    if not folders:
        raise ValueError(f"recording: wanted a folder with {INDEX} in it or below it, got {folder}")
    indices = [read_index(each) for each in folders]
    sizes = {each / name: size for each, index in zip(folders, indices, strict=True) for name, size in index["streams"].items()}
    if not sizes:
        raise ValueError(f"recording: wanted at least one whole episode, got none in {folder}")
    for each, index in zip(folders, indices, strict=True):
        _check_same(indices[0]["spec"], index["spec"], str(each))
    streams = tuple(read_stream(path, size["steps"]) for path, size in sizes.items())
    episodes = sum(size["episodes"] for size in sizes.values())
    return Recording(
        streams=streams,
        paths=tuple(sizes),
        stream_episodes=tuple(size["episodes"] for size in sizes.values()),
        spec=indices[0]["spec"],
        distributions=tuple(sorted({index["distribution"] for index in indices})),
        steps=sum(len(records) - 1 for records in streams),
        episodes=episodes,
        mean_return=sum(size["mean_return"] * size["episodes"] for size in sizes.values()) / episodes,
    )


def check_recording(
    recording: Recording, contract: TrajectoryContract, spec: Mapping[str, Any], distribution: str | None = None
) -> None:
    """Raise ValueError in one line if trajectories of this contract cannot be cut from the recording.

    Args:
        spec: the run's environment as plain data.
        distribution: from which the recorded actions must have been drawn; None if that does not matter.
    """
    _check_same(json.loads(json.dumps(spec)), recording.spec, "--recording")
    _check_fields(recording, contract)
    if distribution is not None and recording.distributions != (distribution,):
        got = " and ".join(name or "none" for name in recording.distributions)
        raise ValueError(f"recording: wanted actions drawn from the distribution {distribution}, got {got}")


def _check_fields(recording: Recording, contract: TrajectoryContract) -> None:
    wanted: dict[str, Field] = {FRAME: contract.frame, "actions": contract.action, **contract.policy_fields}
    for records, path in zip(recording.streams, recording.paths, strict=True):
        for name, field in wanted.items():
            if name not in (records.dtype.names or ()):
                got = ", ".join(records.dtype.names or ())
                raise ValueError(f"recording: wanted the field {name}, which this run needs, got {got} in {path}")
            check_field(records.dtype, name, field, path)


def _check_same(wanted: Mapping[str, Any], got: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if observations or actions differ, or the environments do, where either side has several.

    One environment may stand for another with equal spaces. A frame of several holds an index into their list.
    """
    tasks, others = (tuple(name.strip() for name in spec["env"].split(",")) for spec in (wanted, got))
    if tasks != others and len(tasks) + len(others) > 2:
        why = "a recording of several environments is for the same ones in their order"
        raise ValueError(f"recording: wanted one of {wanted['env']}, got one of {got['env']} in {where}; {why}")
    for name in ("frame_shape", "frame_dtype", "action", "leaves"):
        if wanted[name] != got[name]:
            raise ValueError(f"recording: wanted one of {wanted['env']} with {name} {wanted[name]}, got {got[name]} in {where}")


class Cuts:
    """The trajectories of T rows that a recording is cut into: every step is learned from in one of them, exactly once.

    The last one of a stream is filled with rows whose action is not used, and with burn-in the first one begins with such
    rows. A recurrent state is zero at row 0: that of the policy that acted means nothing to another network. Returns of
    episodes are left out, because no policy of the run has played them.
    """

    def __init__(self, recording: Recording, contract: TrajectoryContract) -> None:
        self.contract = contract
        self._streams = recording.streams
        fresh = contract.fresh_steps
        self._places = [
            (stream, first - contract.overlap)
            for stream, records in enumerate(recording.streams)
            for first in range(0, len(records) - 1, fresh)  # each trajectory has `fresh` steps that no other learns from
        ]
        self._returns: Sequence[np.ndarray] = ()
        if contract.return_discount is not None:
            self._returns = discounted_returns(recording.streams, contract.return_discount)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int, slots: Mapping[str, np.ndarray], slot: int) -> None:
        """Write trajectory `index` into one of the slots, `[slot_count, *shape]` for each field of the contract."""
        stream, first = self._places[index]
        records, rows = self._streams[stream], self.contract.unroll_length
        begin, end = max(first, 0), min(first + rows, len(records) - 1)  # steps of the stream that the rows hold
        played = slice(begin - first, end - first)  # their rows; all others stay unused
        slots["environment_id"][slot] = stream
        for name, array in slots.items():
            values = array[slot]
            if name == EPISODE_RETURN:
                values[...] = np.nan
            elif name == "episode_length":
                values[...] = 0
            elif name == FRAME:
                read_frames(records, first, self.contract.frames_stacked, values)
            elif name in STEP_FIELDS or name == "actions" or name in self.contract.policy_fields:
                values[...] = 0
                values[played] = records[name][begin:end]
            elif name == RETURNS:
                values[...] = 0
                values[played] = self._returns[stream][begin:end]
            elif name == RECURRENT_STATE:
                values[...] = 0
        if first < 0:  # the stream begins behind the rows of burn-in
            slots["reset"][slot, -first - 1] = True


def read_frames(records: np.ndarray, first: int, frames_stacked: int, frames: np.ndarray) -> None:
    """Fill the frames from S-1 before observation `first` on, `[n, *frame_shape]`.

    They are black before the episode of observation `first`, and the last frame again behind the end of the stream.
    """
    start = first - (frames_stacked - 1)  # index of the first frame, which may lie before the stream
    before = records["reset"][max(start, 0) : max(first, 0)]  # resets among the S-1 rows before `first`
    episode = max(start, 0) + int(np.flatnonzero(before)[-1]) + 1 if before.any() else 0
    begin, end = max(start, episode), min(start + len(frames), len(records))
    frames[: begin - start] = 0  # from before the episode or the stream
    frames[begin - start : end - start] = records[FRAME][begin:end]
    frames[end - start :] = records[FRAME][len(records) - 1]


def discounted_returns(streams: Sequence[np.ndarray], discount: float) -> list[np.ndarray]:
    """The discounted rewards of the episode so far at each step, float32 `[n]` of each stream."""
    shape = (len(streams), max(len(records) for records in streams))
    rows = {name: np.zeros(shape, np.float32 if name == RETURNS else STEP_FIELDS[name].dtype) for name in RETURN_FIELDS}
    for stream, records in enumerate(streams):
        for name in RETURN_FIELDS:
            if name != RETURNS:
                rows[name][stream, : len(records)] = records[name]
    discount_returns(rows, np.zeros(len(streams)), discount)
    return [rows[RETURNS][stream, : len(records) - 1] for stream, records in enumerate(streams)]


def observations_of(recording: Recording, frames_stacked: int, count: int, seed: int) -> np.ndarray:
    """Observations drawn at random from all steps, `[count, S, *frame_shape]`."""
    ends = np.cumsum([len(records) - 1 for records in recording.streams])  # [streams], steps up to each stream's end
    drawn = np.random.default_rng(seed).integers(recording.steps, size=count)
    frames = recording.streams[0].dtype[FRAME]
    seen = np.empty((count, frames_stacked, *frames.shape), frames.base)
    for place, step in zip(seen, drawn.tolist(), strict=True):
        stream = int(np.searchsorted(ends, step, side="right"))
        records = recording.streams[stream]
        read_frames(records, step - int(ends[stream]) + len(records) - 1, frames_stacked, place)
    return seen
