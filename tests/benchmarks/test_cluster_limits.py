"""How far the design scales: the arithmetic, with round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import cluster_limits
from benchmarks.cluster_limits import ACTORS, CALL_SECONDS, PUT_BYTES, Design, measured_design, table
from learner.machine.costs import Costs
from learner.plan import make_plan
from tests.support import small_config

ROUND = Design(
    step_seconds=0.001,
    learner_steps=10_000,
    frames_per_step=4,
    unroll_length=20,
    environments=10,
    trajectory_bytes=200_000,
    weight_bytes=10_000_000,
    blocks=2,
    batch_steps=200,
    network_bytes=1e9,
    copy_bytes=1e10,
)


def test_rates_follow_from_the_steps() -> None:
    assert ROUND.offered(8) == pytest.approx(8000)
    assert ROUND.block_rate(8000) == 40  # blocks of 10 x 20 steps
    assert ROUND.bytes_in(8000) == 400 * 200_000
    assert ROUND.arena_bytes(8) == 8 * 2 * 10 * 200_000


def test_each_node_takes_a_version_once_and_no_more_than_it_starts_blocks() -> None:
    assert ROUND.bytes_out(8000, 16) == 40 * 10_000_000  # one node: 40 updates a second and 40 blocks
    assert ROUND.bytes_out(8000, 64) == 40 * 10_000_000  # four nodes start 10 blocks a second each
    assert replace(ROUND, batch_steps=8000).bytes_out(8000, 64) == 4 * 10_000_000  # four nodes, one update a second


def test_one_thread_calls_copies_and_puts_weights() -> None:
    assert ROUND.thread_use(8000) == pytest.approx(40 * CALL_SECONDS + 80e6 / 1e10 + 40 * 10e6 / PUT_BYTES)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"learner_steps": 1e6}, "copying thread"),
        ({"learner_steps": 3000.0}, "learner"),
        ({"network_bytes": 1e6}, "network out"),
    ],
)
def test_the_smallest_limit_is_named(changes: dict[str, float], name: str) -> None:
    design = replace(ROUND, **changes)  # type: ignore[arg-type]
    rows = table(design)
    assert [row["actors"] for row in rows] == list(ACTORS)
    for row in rows:
        most = design.limits(row["actors"])[name]
        assert most == min(design.limits(row["actors"]).values())
        assert row["limit"] == (name if design.offered(row["actors"]) >= most else "actors")
        assert row["frames/s used"] == pytest.approx(4 * min(most, design.offered(row["actors"])))


def test_the_design_has_the_sizes_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_limits, "measure_costs", lambda config, seconds: Costs(0.25, 0.25, 0.25, 0.5, 1))
    monkeypatch.setattr(cluster_limits, "copied_per_second", lambda: 1e9)
    flags = ["--env=Catch-v0", "--network=mlp", "--frames_stacked=1", "--envs_per_worker=4", "--batch_size=4"]
    design = measured_design([*flags, "--unroll_length=10", "--learner_threads=1"], None, 8.0)
    config = small_config(worker_kind="cpu")
    assert design.trajectory_bytes == make_plan(config).contract.bytes_per_trajectory
    assert (design.unroll_length, design.environments, design.blocks, design.batch_steps) == (10, 4, 2, 40)
    assert (design.step_seconds, design.learner_steps, design.network_bytes) == (0.5, 2.0, 1e9)
    assert design.weight_bytes > 1000
    assert measured_design([*flags, "--unroll_length=10"], 60_000.0, 8.0).learner_steps == 60_000
