"""The numbers of infos on their way to the learner. They lie in the slots beside the trajectories. No replay keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from replay.slot_store import SharedArrays, slots_of
from replay.trajectory import Arrays, Field, TrajectoryContract
from wrappers.infos import MOST_NAMES, Infos

INFOS = "infos"
"""Field float64 `[T, MOST_NAMES]`, NaN where a step has no such number. Only written once there is a name."""
INFO_NAMES = "info_names"
"""Field uint8 `[NAMES_BYTES]`: the names, each with a line feed behind it, and zeros."""
INFO_FIELDS = (INFOS, INFO_NAMES)
NAMES_BYTES = 2048


def info_fields(unroll_length: int) -> dict[str, Field]:
    """The fields of one slot beside those of the contract."""
    return {INFOS: Field((unroll_length, MOST_NAMES), "float64"), INFO_NAMES: Field((NAMES_BYTES,), "uint8")}


def info_layout(contract: TrajectoryContract, slot_count: int) -> dict[str, Field]:
    """The layout of these fields in an arena, `[slot_count, *shape]` each."""
    return {name: Field((slot_count, *shape), dtype) for name, (shape, dtype) in info_fields(contract.unroll_length).items()}


def slots_with_infos(shared: SharedArrays, contract: TrajectoryContract, *, poison: bool = False) -> Arrays:
    """The arrays of an arena's slots: those of `slots_of`, and those of `info_layout`."""
    return {**slots_of(shared, contract, poison=poison), **{name: shared.arrays[name] for name in INFO_FIELDS}}


class InfoWriter:
    """Writes the numbers of a group's steps into its slots. slots: with the fields of `info_layout`, or without."""

    def __init__(self, slots: Arrays) -> None:
        self._slots = slots if INFOS in slots else None
        self._names: tuple[str, ...] = ()
        self._text = np.zeros(NAMES_BYTES, np.uint8)

    def begin(self, block: slice, start: int) -> None:
        """Leave out the rows before `start`: an earlier trajectory holds them too."""
        if self._slots and self._names:
            self._slots[INFOS][block, :start] = np.nan

    def write(self, block: slice, t: int, infos: Infos) -> None:
        """Write row t of the slots `block`."""
        if not self._slots:
            return
        if infos.names is not self._names:
            if not self._names:
                self._slots[INFOS][block, :t] = np.nan
            self._names = infos.names
            lines = "".join(f"{name}\n" for name in infos.names).encode()[:NAMES_BYTES]
            self._text[: len(lines)] = np.frombuffer(lines, np.uint8)
        self._slots[INFOS][block, t] = infos.values

    def end(self, block: slice) -> None:
        """Write the names behind the last row. Another worker, which had others, may have used the slots before."""
        if self._slots:
            self._slots[INFO_NAMES][block] = self._text


def infos_of(trajectory: Mapping[str, np.ndarray]) -> Infos | None:
    """The numbers of a trajectory (each field `[*shape]`), with values `[T, MOST_NAMES]`; None if it has none."""
    if INFO_NAMES not in trajectory or not trajectory[INFO_NAMES][0]:
        return None
    return Infos(_names(trajectory[INFO_NAMES].tobytes()), trajectory[INFOS])


@lru_cache(maxsize=64)
def _names(text: bytes) -> tuple[str, ...]:
    # A name that was cut at the end has no line feed.
    return tuple(text.partition(b"\0")[0].decode("ascii").split("\n")[:-1])
