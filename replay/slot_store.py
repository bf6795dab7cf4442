"""Shared memory: one arena, allocated before any process starts, that every process sees as named numpy arrays.

The arena is an anonymous file (`memfd_create`). It needs no room in /dev/shm, has no name that could leak, and ends with the
last process that maps it, even if a signal kills that process. Systems without `memfd_create` get an unlinked temporary file.
A slot holds one trajectory. Only indices of slots travel between processes.
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

ALIGNMENT = 64  # bytes of a cache line: two processes that write different arrays must not share a line


class SharedArrays:
    """Named numpy arrays in one shared mapping, which starts as zeros.

    Pass it to a spawned process as an argument: pickling sends the file descriptor.

    Args:
        layout: Name -> Field (full shape, dtype).
        descriptor: An open file to map. None creates one.
    """

    def __init__(self, layout: Mapping[str, Field], descriptor: int | None = None) -> None:
        self.layout = dict(layout)
        offsets, size = _offsets(self.layout)
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self.size = size
        mapping = mmap.mmap(self.descriptor, size)  # lives as long as an array refers to it
        self.arrays: Arrays = {}
        for name, field in self.layout.items():
            count = math.prod(field.shape)
            flat = np.frombuffer(mapping, field.dtype, count, offsets[name])
            self.arrays[name] = flat.reshape(field.shape)

    def __reduce__(self) -> tuple[Callable[..., SharedArrays], tuple[Any, ...]]:
        return _from_descriptor, (self.layout, reduction.DupFd(self.descriptor))

    def close(self) -> None:
        """Close the descriptor. The mapping ends with the last array that refers to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.arrays.clear()


def slot_layout(contract: TrajectoryContract, slot_count: int) -> dict[str, Field]:
    """Returns the layout of `slot_count` trajectories, each field `[slot_count, *shape]`."""
    return {name: Field((slot_count, *field.shape), field.dtype) for name, field in contract.fields.items()}


def layout_bytes(layout: Mapping[str, Field]) -> int:
    """Returns the size of a mapping with this layout."""
    return _offsets(layout)[1]


def slots_of(shared: SharedArrays, contract: TrajectoryContract, *, poison: bool = False) -> Arrays:
    """Returns the arrays of the slots in an arena whose layout contains that of `slot_layout`.

    poison: fill them with values that no environment or policy writes.
    """
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
        end += -(-size // ALIGNMENT) * ALIGNMENT  # rounded up to whole cache lines
    return offsets, max(end, ALIGNMENT)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        # A program that an environment executes must not keep the arena alive, so the file is closed on exec.
        descriptor = os.memfd_create("trajectories", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
