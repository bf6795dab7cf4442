"""Workers and a policy that sleep: what is asked for is what comes out."""

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
    """Two groups of four that step for 4 ms each; in a process of its own, as the environment is one of the program's then."""
    command = [sys.executable, "-c", MEASURE.format(answer=answer)]
    found: dict[str, float] = json.loads(subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="processes must be forked")
def test_workers_step_while_answers_come_in_time_and_wait_where_they_do_not() -> None:
    soon, late = measured(1e-3), measured(12e-3)
    assert soon["stepping"] > 0.75
    assert late["stepping"] < 0.5
    assert late["waiting_for_answers"] > 0.4
    assert 4 <= soon["environments_an_answer"] <= 8
    assert 40 < late["answers_a_second"] < 84  # one every 12 ms at most
