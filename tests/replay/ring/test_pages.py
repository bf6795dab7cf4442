"""A page stays as long as it has users, and free pages are reused before more memory is claimed."""

from __future__ import annotations

import numpy as np

from replay.ring.pages import PagePool


def content(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8)[:, None], 3, axis=1)


def test_the_lowest_pages_are_written_first() -> None:
    pool = PagePool(9, 3)
    assert pool.put(content(5, 6)).tolist() == [0, 1]
    assert pool.put(content(7)).tolist() == [2]
    assert pool.claimed == 3
    np.testing.assert_array_equal(pool.bytes[:3], content(5, 6, 7))


def test_free_pages_are_reused_before_more_are_claimed() -> None:
    pool = PagePool(9, 3)
    pages = pool.put(content(1, 2, 3))
    pool.release(pages[:2])
    assert pool.free == 2
    assert sorted(pool.put(content(4, 5, 6)).tolist()) == [0, 1, 3]
    assert (pool.free, pool.claimed) == (0, 4)


def test_a_shared_page_stays_until_its_last_user_releases_it() -> None:
    pool = PagePool(9, 3)
    pages = pool.put(content(1, 2))
    pool.share(pages[[1, 1]])
    pool.release(pages)
    assert pool.free == 1
    pool.release(pages[[1]])
    assert pool.free == 1
    pool.release(pages[[1]])
    assert pool.free == 2
