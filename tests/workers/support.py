"""Builders that several tests of workers share."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition()` is true. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"wanted the condition to hold within {seconds} s"
        time.sleep(0.01)
