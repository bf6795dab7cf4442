"""Arrays whose memory the system gives as slots are written, and takes back when the highest slots are given up."""

from __future__ import annotations

import math
import mmap

import numpy as np

_ANONYMOUS: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
_FORGET: int | None = getattr(mmap, "MADV_DONTNEED", None)


class GrowingArray:
    """`array`, `[slots, ...]`, is zero in slots that were never written; those take no memory.

    The array has a mapping of its own. NumPy's memory may share system pages with other objects, or be kept by the C library.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._mapping = mmap.mmap(-1, max(1, size), **_ANONYMOUS)
        self.array = np.frombuffer(self._mapping, dtype, math.prod(shape)).reshape(shape)

    def give_back(self, first: int) -> None:
        """Return the memory of slot `first` and all higher ones to the system. Their content is undefined afterwards.

        The system takes whole pages only, so the start of that memory may stay. Nothing happens on a system without
        MADV_DONTNEED.
        """
        start = -(-first * self.array[:1].nbytes // mmap.PAGESIZE) * mmap.PAGESIZE  # rounded up to whole system pages
        if _FORGET is not None and start < self.array.nbytes:
            self._mapping.madvise(_FORGET, start)
