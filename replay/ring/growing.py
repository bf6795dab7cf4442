"""Arrays that claim memory row by row as it is written, and give it back."""

from __future__ import annotations

import math
import mmap

import numpy as np

_ANONYMOUS: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
_FORGET: int | None = getattr(mmap, "MADV_DONTNEED", None)


class GrowingArray:
    """`array` has zeros in rows that were never written, which take no memory.

    It lies in a mapping of its own: what NumPy allocates may share pages with other objects, or be kept by the C library.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._mapping = mmap.mmap(-1, max(1, size), **_ANONYMOUS)
        self.array = np.frombuffer(self._mapping, dtype, math.prod(shape)).reshape(shape)

    def give_back(self, first: int) -> None:
        """Give the memory of row `first` and all behind it back to the system, but for a part of a page; they hold nothing now.

        Where the system has no way to do so, they stay as they are.
        """
        start = -(-first * self.array[:1].nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if _FORGET is not None and start < self.array.nbytes:
            self._mapping.madvise(_FORGET, start)
