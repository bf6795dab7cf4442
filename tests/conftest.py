"""Options of the tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hammer_seconds", type=float, default=0.6, help="how long each replay kind is hammered by two threads")
