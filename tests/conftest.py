"""Options of the tests, and how each finds this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hammer_seconds", type=float, default=0.6, help="how long each replay kind is hammered by two threads")


@pytest.fixture(autouse=True)
def as_ever() -> Iterator[None]:
    """A run in this process sets PyTorch up and logs to the console of its test. One thread, because several that wait for each
    other crawl on a busy machine."""
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    log = logging.getLogger("springbok")
    log.handlers.clear()
    log.propagate = True
