"""A page stays as long as anybody uses it, and memory is claimed no faster than needed."""

from __future__ import annotations

import numpy as np

from replay.ring.pages import PagePool


def content(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8)[:, None], 3, axis=1)


def test_pages_are_written_from_the_lowest_on() -> None:
    pool = PagePool(9, 3)
    assert pool.put(content(5, 6)).tolist() == [0, 1]
    assert pool.put(content(7)).tolist() == [2]
    assert pool.claimed == 3
    np.testing.assert_array_equal(pool.bytes[:3], content(5, 6, 7))


def test_what_nobody_uses_is_written_before_more_is_claimed() -> None:
    pool = PagePool(9, 3)
    pages = pool.put(content(1, 2, 3))
    pool.release(pages[:2])
    assert pool.free == 2
    assert sorted(pool.put(content(4, 5, 6)).tolist()) == [0, 1, 3]
    assert (pool.free, pool.claimed) == (0, 4)


def test_a_shared_page_outlives_its_first_owner() -> None:
    pool = PagePool(9, 3)
    pages = pool.put(content(1, 2))
    pool.share(pages[[1, 1]])
    pool.release(pages)
    assert pool.free == 1
    pool.release(pages[[1]])
    assert pool.free == 1
    pool.release(pages[[1]])
    assert pool.free == 2
