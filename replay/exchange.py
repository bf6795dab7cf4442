"""Experience that runs on this machine share: each learns from the replayed trajectories of the others too.

LASER (Schmitt et al. 2019, arXiv:1909.11583) shares the replay of a sweep whose members have different settings. Here each run
publishes its fresh trajectories in a ring of its own, a file in a common folder that all map. A run inserts what others have
published since its last look into its own replays. So retention, priorities and windows stay as they are, no run waits for
another, and runs may come and go.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

try:
    import fcntl
except ImportError:  # Windows, where the setting is refused
    fcntl = None  # type: ignore[assignment]

from replay.slot_store import SharedArrays, layout_bytes, slot_layout
from replay.trajectory import ENVIRONMENT_ID, RECURRENT_STATE, Arrays, Field, TrajectoryContract

RING_BYTES = 64 * 10**6
FEWEST, MOST = 8, 512  # trajectories in a ring
LOOK_SECONDS = 1.0  # between two looks for other runs
FIRST_ID = 2**20
"""Environments of other runs have numbers from here on, in ranges of this length."""
RANGES = 2000
ZEROS = bytes(2**20)


class ExchangeError(ValueError):
    """A ring that cannot be made. The message is one line that names the setting."""


class Exchange:
    """This run's ring, and those of the others with the same trajectories.

    Args:
        folder: of all rings; it is made if it is missing.
        contract: of the trajectories.
        identity: text that is equal for runs whose trajectories mean the same. Rings of other ones are ignored.
        run: id of the run. Learners of one run have the same, and take nothing from each other.

    Raises ExchangeError.
    """

    def __init__(self, folder: Path, contract: TrajectoryContract, identity: str, run: str) -> None:
        self.fields = tuple(contract.fields)
        self.slots, self.layout = _ring_of(contract)
        described = json.dumps([identity, contract.signature(), self.slots])
        self._kind = hashlib.sha256(described.encode()).hexdigest()[:16]
        self._run = f"{self._kind}-{run}"  # a ring's name is this and a random part
        self._own, hidden = _make_file(folder, self.layout)
        self._path = folder / f"{self._run}-{hidden.name.lstrip('.')}"
        hidden.rename(self._path)
        self._others: dict[str, OtherRing] = {}
        self._looked = -LOOK_SECONDS
        self._ranges = 0
        self.taken = self.gaps = 0

    def publish(self, trajectory: Mapping[str, np.ndarray]) -> None:
        """Let the others read a trajectory, `[*shape]` each field."""
        arrays = self._own.arrays
        count = int(arrays["count"][0])
        slot = count % self.slots
        arrays["number"][slot] = 0  # a reader that sees this, or another number after its copy, drops the copy
        for name in self.fields:
            arrays[name][slot] = trajectory[name]
        arrays["number"][slot] = arrays["count"][0] = count + 1

    def take(self) -> Iterator[Arrays]:
        """Copies of what the others have published since the last call, `[*shape]` each field. Some may be missed.

        A recurrent state is zero, as in recordings: that of another network means nothing to this run's.
        """
        if monotonic() - self._looked >= LOOK_SECONDS:
            self._look()
        for name, other in self._others.items():
            if _run_of(name) == self._run:
                continue
            for trajectory in other.take(self.fields, self.slots):
                if trajectory is None:  # its environments' next trajectories follow none that was read
                    other.first_id = self._next_range()
                    self.gaps += 1
                    continue
                trajectory[ENVIRONMENT_ID] += other.first_id
                if RECURRENT_STATE in trajectory:
                    trajectory[RECURRENT_STATE][:] = 0
                self.taken += 1
                yield trajectory

    def metrics(self) -> dict[str, float]:
        """Other runs, trajectories taken so far, and gaps: times that others were faster than this run."""
        runs = {_run_of(name) for name in self._others} - {self._run}
        return {"exchange/runs": len(runs), "exchange/taken": self.taken, "exchange/gaps": self.gaps}

    def close(self) -> None:
        """Remove this run's ring. Others keep what they have read. Safe to call twice."""
        self._path.unlink(missing_ok=True)
        for ring in (self._own, *(other.shared for other in self._others.values())):
            ring.close()
        self._others = {}

    def _next_range(self) -> int:
        self._ranges += 1
        return FIRST_ID * (1 + self._ranges % RANGES)

    def _look(self) -> None:
        """Find the rings of learners that have begun, and drop those of learners that have ended.

        The files of killed learners are removed, also those of this run before it was resumed.
        """
        self._looked = monotonic()
        found = {path.name: path for path in self._path.parent.glob(f"{self._kind}-*") if path != self._path}
        for name in found.keys() - self._others.keys():
            with contextlib.suppress(FileNotFoundError):
                shared = SharedArrays(self.layout, os.open(found[name], os.O_RDWR | os.O_CLOEXEC))
                self._others[name] = OtherRing(shared, int(shared.arrays["count"][0]), self._next_range())
        for name, other in list(self._others.items()):
            if name not in found or _is_free(other.shared.descriptor):
                self._others.pop(name).shared.close()
                (self._path.parent / name).unlink(missing_ok=True)


@dataclass
class OtherRing:
    """The ring of another learner.

    shared: its arrays. read: trajectories read or missed so far. first_id: of its environments.
    """

    shared: SharedArrays
    read: int
    first_id: int

    def take(self, fields: Sequence[str], slots: int) -> Iterator[Arrays | None]:
        """Copies of what is new, in order. None stands for one or more trajectories that were overwritten before.

        What is published meanwhile is left for the next call, so that this one ends.
        """
        arrays = self.shared.arrays
        end = int(arrays["count"][0])
        while self.read < end:
            if (count := int(arrays["count"][0])) - self.read > slots:
                self.read = count - slots
                yield None
            slot = self.read % slots
            self.read += 1
            trajectory = {name: arrays[name][slot].copy() for name in fields}
            # The writer may have come round to this slot during the copy.
            yield trajectory if arrays["number"][slot] == self.read else None


def check_room(folder: Path, contract: TrajectoryContract) -> None:
    """Make a ring's file in the folder and remove it. Raises ExchangeError if that fails."""
    arrays, hidden = _make_file(folder, _ring_of(contract)[1])
    arrays.close()
    hidden.unlink()


def _ring_of(contract: TrajectoryContract) -> tuple[int, dict[str, Field]]:
    """The number of trajectories in a ring, and the layout of its arrays."""
    slots = min(MOST, max(FEWEST, RING_BYTES // contract.bytes_per_trajectory))
    # count: trajectories published so far. number: of the one in each slot, from 1 on; 0 while it is written.
    counts = {"count": Field((1,), "int64"), "number": Field((slots,), "int64")}
    return slots, {**slot_layout(contract, slots), **counts}


def _run_of(name: str) -> str:
    """The part of a ring's name that all rings of its run share."""
    return name.rpartition("-")[0]


def _make_file(folder: Path, layout: Mapping[str, Field]) -> tuple[SharedArrays, Path]:
    """Make a file of zeros with a hidden name, and take its lock. Returns its arrays and its path.

    The lock says that this learner lives. The caller renames the file, so that others find only whole ones. Raises
    ExchangeError, and then leaves no file.
    """
    size = layout_bytes(layout)
    try:
        with contextlib.ExitStack() as undo:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=".")
            undo.callback(os.unlink, name)
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _claim(descriptor, size)
            arrays = SharedArrays(layout, descriptor)
            undo.pop_all()
    except OSError as error:
        raise ExchangeError(
            f"share_experience: wanted a folder with room for a ring of {size / 1e6:.2f} MB, got {str(folder)[:200]!r} "
            f"({error.strerror})"
        ) from error
    return arrays, Path(name)


def _claim(descriptor: int, size: int) -> None:
    """Let an empty file have `size` bytes of zeros, and room for them.

    A sparse file would not do: a write to a mapped page for which there is no room ends the process with SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # by a file system that cannot
                raise
    with open(descriptor, "wb", closefd=False) as file:  # macOS does not have that function
        for start in range(0, size, len(ZEROS)):
            file.write(ZEROS[: size - start])


def _is_free(descriptor: int) -> bool:
    """Take the lock of a file, until the file is closed. Returns whether no other process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
