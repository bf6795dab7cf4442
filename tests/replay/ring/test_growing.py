"""Memory is claimed when slots are written, and returned above the slots that stay."""

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
def test_memory_is_claimed_and_returned_with_the_slots() -> None:
    before = resident_bytes()
    slots = GrowingArray((10_000, 1000), "float64")  # 80 MB
    assert resident_bytes() - before < MEGABYTE
    slots.array[:5000] = 7.0
    assert 38e6 < resident_bytes() - before < 42e6
    slots.give_back(1001)
    assert 8e6 < resident_bytes() - before < 9e6
    assert (slots.array[:1001] == 7).all()


@pytest.mark.parametrize("shape", [(100,), (100, 7), (3, 0), (0, 4)])
@pytest.mark.parametrize("first", [0, 1, 99, 100])
def test_slots_that_stay_keep_their_content_and_others_can_be_reused(shape: tuple[int, ...], first: int) -> None:
    slots = GrowingArray(shape, "int64")
    assert slots.array.shape == shape
    assert not slots.array.any()
    slots.array[:] = wanted = np.arange(slots.array.size).reshape(shape) + 1
    slots.give_back(first)
    np.testing.assert_array_equal(slots.array[:first], wanted[:first])
    slots.array[:] = -wanted
    np.testing.assert_array_equal(slots.array, -wanted)


def test_an_array_outlives_its_growing_array() -> None:
    array = GrowingArray((5000,), "uint8").array
    array[:] = 3
    assert array.sum() == 15_000
