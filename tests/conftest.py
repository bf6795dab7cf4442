"""Options of the tests, and how each finds this process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest
import torch

SLOW = (
    "tests/agents/test_compute.py",
    "tests/benchmarks/",
    "tests/gpu/",
    "tests/learner/evaluation/",
    "tests/learner/metrics/test_profiler.py",
    "tests/learner/ranks/test_processes.py",
    "tests/learner/runs/test_resuming.py",
    "tests/learner/serving/",
    "tests/learner/stores/test_s3.py",
    "tests/learner/test_",
    "tests/replay/ring/test_storage.py::test_bytes_claimed",
    "tests/replay/ring/test_storage.py::test_compaction_returns_memory",
    "tests/replay/test_hammer.py",
    "tests/replay/test_slot_store.py",
    "tests/test_extending.py",
    "tests/test_main.py",
    "tests/test_matrix.py",
    "tests/test_makefile.py::test_docs",
    "tests/test_old_checkpoints.py",
    "tests/test_refusals.py::test_the_program",
    "tests/workers/central/",
    "tests/workers/cluster/",
    "tests/workers/processes/",
    "tests/workers/test_recurrent.py",
    "tests/workers/test_weights.py",
    "tests/wrappers/test_atari_single.py",
)
"""Beginnings of the names of slow tests: they start processes, train or measure. `make quick` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


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


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing its learning curve takes twice as long as a short run. Tests of the curve are marked `pictures`."""
    summary = sys.modules.get("learner.metrics.summary")
    if summary and not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(summary, "draw_learning_curve", lambda *arguments: None)
