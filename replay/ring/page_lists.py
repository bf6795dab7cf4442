"""The numbers of the pages that each slot's frames lie in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from replay.ring.growing import GrowingArray


class PageLists(ABC):
    """Page numbers of the slots that were ever written, int64 `[n]` each; none for an empty slot."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of slots."""

    @abstractmethod
    def __getitem__(self, slot: int) -> np.ndarray:
        """The pages of a slot."""

    @abstractmethod
    def put(self, slot: int, pages: np.ndarray) -> None:
        """Set the pages of a slot, which may be the next new one."""

    @abstractmethod
    def truncate(self, count: int) -> None:
        """Forget slot `count` and all higher ones."""

    def joined(self) -> np.ndarray:
        """The pages of all slots, one after the other, int64 `[pages]`."""
        return np.concatenate([np.empty(0, np.int64), *(self[slot] for slot in range(len(self)))])

    def counts(self) -> list[int]:
        """Number of pages of each slot."""
        return [len(self[slot]) for slot in range(len(self))]

    def load(self, parts: Sequence[np.ndarray]) -> None:
        """Replace everything by the pages of new slots."""
        self.truncate(0)
        for slot, pages in enumerate(parts):
            self.put(slot, pages)


class VariedPages(PageLists):
    """Lists of any length."""

    def __init__(self) -> None:
        self._pages: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, slot: int) -> np.ndarray:
        return self._pages[slot]

    def put(self, slot: int, pages: np.ndarray) -> None:
        # A slice assignment also appends a new slot. The copy frees the joined array that `load` cuts `pages` from.
        self._pages[slot : slot + 1] = [pages.copy()]

    def truncate(self, count: int) -> None:
        del self._pages[count:]


class PageTable(PageLists):
    """Lists of one length, or empty, as the rows of one array: those of many slots are read in one operation.

    Args:
        slots: Most slots.
        length: Pages of a slot.
    """

    def __init__(self, slots: int, length: int) -> None:
        self._growing = GrowingArray((slots, length), "int64")
        self._lengths = GrowingArray((slots,), "int32")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> np.ndarray:
        pages: np.ndarray = self._growing.array[slot, : self._lengths.array[slot]]
        return pages

    def put(self, slot: int, pages: np.ndarray) -> None:
        self._growing.array[slot, : len(pages)] = pages
        self._lengths.array[slot] = len(pages)
        self._count = max(self._count, slot + 1)

    def truncate(self, count: int) -> None:
        self._growing.give_back(count)
        self._lengths.give_back(count)
        self._count = count

    def take(self, slots: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The pages at some places of some slots, int64 `[n, m]`. slots: int64 `[n]`, none of them empty; places: `[n, m]`."""
        pages: np.ndarray = self._growing.array[slots[:, None], places]  # [n, 1] and [n, m] -> [n, m]
        return pages
