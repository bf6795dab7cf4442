"""Workers and a policy that sleep for given times reach the expected fractions of time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

MEASURE = """
import json
from benchmarks.central import Times, measure
print(json.dumps(measure(2, 4, Times(1e-3, {answer}, 0.0, 1e-3), 2.0, 1.5)))
"""


def measured(answer: float) -> dict[str, float]:
    """Measure two groups of four that step for 4 ms each, in another process, because the measurement registers a family."""
    command = [sys.executable, "-c", MEASURE.format(answer=answer)]
    found: dict[str, float] = json.loads(subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs forked processes")
def test_workers_step_if_answers_are_fast_and_wait_if_they_are_slow() -> None:
    soon, late = measured(1e-3), measured(12e-3)
    assert soon["stepping"] > 0.6
    assert late["stepping"] < 0.5
    assert late["waiting_for_answers"] > 0.4
    assert 4 <= soon["environments_an_answer"] <= 8
    assert 40 < late["answers_a_second"] < 84  # at most one every 12 ms
