"""Memory is claimed as rows are written, and given back behind those that stay."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from replay.ring.growing import GrowingArray

MEGABYTE = 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")
def test_memory_comes_and_goes_with_the_rows() -> None:
    before = resident_bytes()
    rows = GrowingArray((10_000, 1000), "float64")  # 80 MB
    assert resident_bytes() - before < MEGABYTE
    rows.array[:5000] = 7.0
    assert 38e6 < resident_bytes() - before < 42e6
    rows.give_back(1001)
    assert 8e6 < resident_bytes() - before < 9e6
    assert (rows.array[:1001] == 7).all()


@pytest.mark.parametrize("shape", [(100,), (100, 7), (3, 0), (0, 4)])
@pytest.mark.parametrize("first", [0, 1, 99, 100])
def test_rows_that_stay_keep_what_they_hold_and_others_can_be_written_again(shape: tuple[int, ...], first: int) -> None:
    rows = GrowingArray(shape, "int64")
    assert rows.array.shape == shape
    assert not rows.array.any()
    rows.array[:] = wanted = np.arange(rows.array.size).reshape(shape) + 1
    rows.give_back(first)
    np.testing.assert_array_equal(rows.array[:first], wanted[:first])
    rows.array[:] = -wanted
    np.testing.assert_array_equal(rows.array, -wanted)


def test_an_array_outlives_what_made_it() -> None:
    array = GrowingArray((5000,), "uint8").array
    array[:] = 3
    assert array.sum() == 15_000
