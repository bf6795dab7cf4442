"""One file of a recording: the steps of one environment in the order of time, as a numpy array of records.

Record t holds the frame of observation t, the action that followed, and what came of it. Record n, the last one, has the
observation after the last of n steps and no step of its own. `numpy.load(path, mmap_mode="r")["rewards"]` reads a field.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from replay.trajectory import Field

FRAME = "frames"
"""Field of the newest frame of an observation."""

STEP_FIELDS = {
    "rewards": Field((), "float32"),
    "terminated": Field((), "bool"),
    "truncated": Field((), "bool"),
    "reset": Field((), "bool"),
    "action_used": Field((), "bool"),
    "episode_return": Field((), "float32"),
    "episode_length": Field((), "int32"),
}
"""Fields of a record that come from the environment, as `wrappers.spec.Step` explains them."""


class RecordFields(NamedTuple):
    """Shapes and dtypes of one frame and one action, and the fields that the policy stores with its action.

    distribution: name of the distribution from which actions are drawn, empty if from none.
    """

    frame_shape: tuple[int, ...]
    frame_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    acting: Mapping[str, Field]
    distribution: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a record."""
        frame, action = Field(self.frame_shape, self.frame_dtype), Field(self.action_shape, self.action_dtype)
        fields = {FRAME: frame, "actions": action, **STEP_FIELDS, **self.acting}
        return np.dtype([(name, field.dtype, field.shape) for name, field in fields.items()])


class StreamFile:
    """Writes one file. Records become part of it when they are kept; it is whole after each `keep`.

    steps: how many are kept. Raises OSError, also if the file exists.
    """

    def __init__(self, path: Path, records: np.dtype[Any]) -> None:
        self.path = path
        self.steps = 0
        self._written = 0
        self._type = records
        self._file = path.open("xb")
        self._file.write(_header(records, 0))
        self._first = self._file.tell()

    def write(self, records: np.ndarray) -> None:
        """Add steps `[n]` that are not kept yet."""
        self._file.seek(self._first + self._written * self._type.itemsize)
        self._file.write(records.tobytes())
        self._written += len(records)

    def keep(self, after: np.ndarray) -> None:
        """Keep all steps that are written. after: the record behind them, `[]`, until further steps take its place."""
        self._file.seek(self._first + self._written * self._type.itemsize)
        self._file.write(after.tobytes())
        self._file.flush()
        self.steps = self._written
        # Last, so that a header never promises records that are not there.
        self._file.seek(0)
        self._file.write(_header(self._type, self.steps + 1))
        self._file.flush()

    def close(self) -> None:
        """Drop what is not kept. A file without any step is removed."""
        self._file.truncate(self._first + (self.steps + 1) * self._type.itemsize)
        self._file.close()
        if not self.steps:
            self.path.unlink()


def _header(records: np.dtype[Any], count: int) -> bytes:
    """The header of an .npy file. Its length does not depend on the count, because numpy leaves room for larger ones."""
    described = {"descr": np.lib.format.dtype_to_descr(records), "fortran_order": False, "shape": (count,)}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_2_0(buffer, described)
    return buffer.getvalue()


def read_stream(path: Path, steps: int = 1) -> np.ndarray:
    """The records of a file, `[n + 1]`, mapped from the disk: only what is read takes memory.

    steps: how many the file must have at least. Raises ValueError in one line that names the file, or OSError.
    """
    if not path.is_file():
        raise ValueError(f"{path}: wanted a file of a recording, got none")
    try:
        # Unlike `numpy.load` this reads neither archives nor pickles.
        records = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # the header may hold anything, and numpy evaluates it
        raise ValueError(f"{path}: wanted an array of records, got {' '.join(str(error).split())[:200]}") from None
    if records.ndim != 1 or not records.dtype.names or not {FRAME, "actions", *STEP_FIELDS} <= {*records.dtype.names}:
        raise ValueError(f"{path}: wanted an array of records with the fields of a recording, got {records.dtype}")
    for name, field in STEP_FIELDS.items():
        check_field(records.dtype, name, field, path)
    if len(records) <= steps:
        raise ValueError(f"{path}: wanted {steps:,} steps and the record after them, got {len(records):,} records")
    return records


def check_field(records: np.dtype[Any], name: str, wanted: Field, path: Path) -> None:
    """Raise ValueError in one line if a field of records has another shape or dtype."""
    got = records[name]
    if (got.base, got.shape) != (np.dtype(wanted.dtype), wanted.shape):
        raise ValueError(f"recording: wanted {name} as {wanted.dtype} {wanted.shape}, got {got.base} {got.shape} in {path}")
