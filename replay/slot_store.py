"""Shared memory: one arena, allocated before any child starts, seen by every process as named numpy arrays.

The arena is an anonymous file (`memfd_create`) where the system has one: it needs no room in /dev/shm, has no name that could
leak, and is gone when the last process that maps it dies, by whatever signal. Elsewhere it is an unlinked temporary file.
Slots are the trajectories in it; only their indices travel between processes.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any

import numpy as np

from replay.trajectory import Arrays, Field, TrajectoryContract, poison_arrays

ALIGNMENT = 64  # bytes: one cache line, so that two processes never write to the same one


class SharedArrays:
    """Named numpy arrays in one shared mapping. Hand it to a spawned process as an argument: the file descriptor travels.

    layout: name -> Field (full shape, dtype). The memory starts as zeros.
    """

    def __init__(self, layout: Mapping[str, Field], descriptor: int | None = None) -> None:
        self.layout = dict(layout)
        offsets, size = _offsets(self.layout)
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self.size = size
        mapping = mmap.mmap(self.descriptor, size)  # kept by the arrays alone
        self.arrays: Arrays = {}
        for name, field in self.layout.items():
            count = math.prod(field.shape)
            flat = np.frombuffer(mapping, field.dtype, count, offsets[name])
            self.arrays[name] = flat.reshape(field.shape)

    def __reduce__(self) -> tuple[Callable[..., SharedArrays], tuple[Any, ...]]:
        return _from_descriptor, (self.layout, reduction.DupFd(self.descriptor))

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last array that looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.arrays.clear()


def slot_layout(contract: TrajectoryContract, slot_count: int) -> dict[str, Field]:
    """Layout of `slot_count` trajectories, each field `[slot_count, *shape]`."""
    return {name: Field((slot_count, *field.shape), field.dtype) for name, field in contract.fields.items()}


def slots_of(shared: SharedArrays, contract: TrajectoryContract, *, poison: bool = False) -> Arrays:
    """The slots' arrays of an arena that was laid out with `slot_layout`."""
    slots = {name: shared.arrays[name] for name in contract.fields}
    if poison:
        poison_arrays(slots)
    return slots


def _from_descriptor(layout: Mapping[str, Field], duplicate: Any) -> SharedArrays:
    return SharedArrays(layout, duplicate.detach())


def _offsets(layout: Mapping[str, Field]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, field in layout.items():
        offsets[name] = end
        size = math.prod(field.shape) * np.dtype(field.dtype).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, ALIGNMENT)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("trajectories", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
