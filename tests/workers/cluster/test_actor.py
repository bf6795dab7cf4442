"""A worker in a Ray actor, without a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers.processes.test_supervisor import closing
from tests.workers.support import make_setup

pytest.importorskip("ray", reason="Ray is an optional package (requirements-ray.txt)")


@pytest.mark.parametrize("fails", ["reset", ""])
def test_an_actor_whose_environments_or_policy_fail_closes_them(fails: str, tmp_path: Path) -> None:
    from workers.cluster.actor import RolloutActor

    closed = tmp_path / "closed"
    setup = make_setup("ray", **closing(closed, fails=fails))
    closed.unlink()  # the environment was tried out
    actor = RolloutActor(setup, 0, 1)
    error = actor.build().error
    if not fails:
        assert error == ""
        report, _ = actor.collect(np.zeros(3, np.float32), 1)  # of another network
        error = report.error
    assert error
    assert len(closed.read_text().splitlines()) == setup.config.envs_per_worker
