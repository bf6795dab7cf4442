"""A GPU for tests of what the program does with one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.simulated_cuda import simulated_gpu
from tests.gpu.simulated_gpu import SimulatedGpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """`cuda` is a simulated GPU."""
    with simulated_gpu(monkeypatch) as simulated:
        yield simulated
