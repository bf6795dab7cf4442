"""Histograms of clients' metrics: what the server counted is what the learner reads, once."""

from __future__ import annotations

import numpy as np
import pytest

from workers.served.histograms import HISTOGRAM_LAYOUT, HistogramReader, HistogramWriter
from wrappers.infos import MOST_NAMES


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    return {name: np.zeros(field.shape, field.dtype) for name, field in HISTOGRAM_LAYOUT.items()}


def test_each_number_is_read_once_in_the_bucket_that_holds_it(arrays: dict[str, np.ndarray]) -> None:
    writer, reader = HistogramWriter(arrays), HistogramReader(arrays)
    numbers = [-3.0, 0.0, 0.0, 0.25, 7.5, 1e300]
    writer.add("level", numbers[:2])
    writer.add("level", numbers[2:5])
    found = reader.read()["level"]
    for number, (upper, count) in zip(
        sorted(set(numbers[:5])),
        [(edge, count) for edge, count in zip(found.edges, found.counts, strict=True) if count],
        strict=True,
    ):
        assert count == numbers.count(number)
        assert number <= upper <= number + 0.1 * abs(number) + 1e-6
    assert (found.total, found.squares) == (4.75, 9 + 0.0625 + 56.25)
    assert reader.read() == {}
    writer.add("level", numbers[5:])
    assert reader.read()["level"].counts.sum() == 1


def test_the_next_process_goes_on_and_more_names_are_left_out(arrays: dict[str, np.ndarray]) -> None:
    first, reader = HistogramWriter(arrays), HistogramReader(arrays)
    first.add("a", [1.0])
    second = HistogramWriter(arrays)
    for name in ("b", "a", *(f"n{number}" for number in range(MOST_NAMES))):
        second.add(name, [2.0])
    found = reader.read()
    assert found["a"].total == 3
    assert list(found) == ["a", "b", *(f"n{number}" for number in range(MOST_NAMES - 2))]
