"""Histograms of the metrics that clients send. The server counts the numbers in shared memory, and the learner reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replay.trajectory import Field
from wrappers.infos import LONGEST_NAME, MOST_NAMES

_POSITIVE = 1e-6 * 1.1 ** np.arange(484)  # to 1e14: the buckets of TensorBoard, without the smallest and largest
EDGES = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE, [np.finfo(np.float64).max]])
"""float64 `[E]`, the upper edge of each bucket."""
BUCKETS, SUMS, METRIC_NAMES = "served_buckets", "served_sums", "served_metric_names"
HISTOGRAM_LAYOUT: Mapping[str, Field] = {
    BUCKETS: Field((MOST_NAMES, len(EDGES)), "float64"),
    SUMS: Field((MOST_NAMES, 2), "float64"),
    METRIC_NAMES: Field((MOST_NAMES, LONGEST_NAME), "uint8"),
}


@dataclass(frozen=True)
class Histogram:
    """Numbers in buckets. edges: float64 `[N]`, the upper edge of each. counts: float64 `[N]`. total, squares: their sums."""

    edges: np.ndarray
    counts: np.ndarray
    total: float
    squares: float


class HistogramWriter:
    """Counts numbers in the buckets of their names.

    arrays: those of `HISTOGRAM_LAYOUT`. They hold the numbers of an earlier process of this run.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._buckets, self._sums, self._names = (arrays[name] for name in HISTOGRAM_LAYOUT)
        self._places = {name: place for place, name in enumerate(_names_in(self._names))}

    def add(self, name: str, values: list[float]) -> None:
        """Count the numbers of a name; the names after the first `MOST_NAMES` are left out."""
        if name not in self._places:
            if len(self._places) == MOST_NAMES:
                return
            place = self._places[name] = len(self._places)
            self._names[place, : len(name)] = np.frombuffer(name.encode("ascii"), np.uint8)
        place, numbers = self._places[name], np.array(values)
        np.add.at(self._buckets[place], np.searchsorted(EDGES, numbers), 1)
        with np.errstate(over="ignore"):  # TensorBoard has these sums too, and shows neither
            self._sums[place] += numbers.sum(), np.square(numbers).sum()


class HistogramReader:
    """Reads what was counted since the last reading. arrays: those of `HISTOGRAM_LAYOUT`."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._buckets, self._sums, self._names = (arrays[name] for name in HISTOGRAM_LAYOUT)
        self._before = self._buckets.copy(), self._sums.copy()

    def read(self) -> dict[str, Histogram]:
        """Name -> its histogram, of those with new numbers."""
        now = self._buckets.copy(), self._sums.copy()
        with np.errstate(invalid="ignore"):
            counts, sums = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        found: dict[str, Histogram] = {}
        for place, name in enumerate(_names_in(self._names)):
            if (filled := np.flatnonzero(counts[place])).size:
                # An empty bucket before the first one gives it a lower edge.
                part = slice(max(0, filled[0] - 1), filled[-1] + 1)
                found[name] = Histogram(EDGES[part], counts[place, part], *np.nan_to_num(sums[place]).tolist())
        return found


def _names_in(names: np.ndarray) -> list[str]:
    texts = [row.tobytes().rstrip(b"\0").decode("ascii") for row in names]
    return [text for text in texts if text]
