"""Fixtures that tests of the learner share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from learner import launch
from learner.metrics import bottleneck
from learner.runs.directory import RunDirectory
from tests.support import CATCH


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that the program logs."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("springbok")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture(scope="session")
def catch_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished training of a second on Catch, whose rows of metrics are long enough for the bottleneck report."""
    results = tmp_path_factory.mktemp("results")
    given = {**CATCH, "log_period": 0.05, "results_dir": str(results)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bottleneck, "MIN_SECONDS", 1e-6)
        assert launch.run(launch.prepare("train", given, ["main.py"])) == 0
    return RunDirectory((results / "latest").resolve())
