"""Checks the numbers of a recording before anything learns from them: its files may have been changed or damaged."""

from __future__ import annotations

import numpy as np

from replay.recordings.recording import Recording
from replay.recordings.stream import FRAME
from replay.trajectory import EPISODE_RETURN
from workers.finite import float_parts
from wrappers.spaces import Packing
from wrappers.spec import EnvSpec

ROWS = 4096
"""Records that are checked together."""


def check_values(recording: Recording, spec: EnvSpec) -> None:
    """Raise ValueError in one line that names the file if a recording that fits the environment has impossible values.

    These are non-finite numbers, actions that the environment does not have, and fewer episodes than the index says.
    """
    packing = Packing(spec.leaves) if spec.leaves else None
    for path, records, promised in zip(recording.paths, recording.streams, recording.stream_episodes, strict=True):
        ended = 0
        for begin in range(0, len(records), ROWS):
            rows = records[begin : begin + ROWS]
            used = rows[: len(records) - 1 - begin]  # the last record has no step
            if fault := _fault(rows, used, spec, packing):
                raise ValueError(f"{path}: {fault} in records {begin:,} to {begin + len(rows) - 1:,}")
            ended += int(np.count_nonzero(used["episode_length"] > 0))
        if ended < promised:
            raise ValueError(f"{path}: wanted {promised:,} ended episodes as its index says, got {ended:,}")


def _fault(rows: np.ndarray, used: np.ndarray, spec: EnvSpec, packing: Packing | None) -> str | None:
    """The fault of records, None if there is none. used: those of them that have a step."""
    for name, values in float_parts(packing, rows[FRAME][:, None]):
        if not np.isfinite(values).all():
            return f"wanted finite {name}, got others"
    for name in rows.dtype.names or ():
        if name in (FRAME, EPISODE_RETURN):  # the return is NaN where no episode ended
            continue
        values = rows[name]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"wanted finite {name}, got others"
        if values.dtype.kind == "b" and values.view(np.uint8).max(initial=0) > 1:
            return f"wanted truth values as {name}, got other bytes"
    if len(used) and not spec.action.in_range(used["actions"]):
        return f"wanted {spec.action.describe()} as actions, got others"
    return None
