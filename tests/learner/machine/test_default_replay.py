"""The default replay of a million steps shrinks to what the memory holds; one that was asked for does not."""

from __future__ import annotations

from typing import Any

from learner.machine.default_replay import fit_default_replay
from learner.machine.memory_check import host_memory
from tests.support import small_config, small_plan

LITTLE = 1_040_000_000  # bytes, of which the learner's process takes a billion


def fitted(available: int, **given: Any) -> tuple[int | None, list[str]]:
    plan = small_plan(agent="sac", env="Reach-v0", **given)
    changed, lines = fit_default_replay(plan, available)
    (replay,) = small_config(**{**plan.config.settings, **changed, "batch_size": 4}).replays
    return replay.steps, lines


def test_a_default_replay_that_fits_stays() -> None:
    assert fitted(8 * 10**9) == (1_000_000, [])


def test_a_default_replay_takes_what_the_memory_holds() -> None:
    steps, lines = fitted(LITTLE)
    assert steps is not None
    assert 10_000 < steps < 1_000_000
    assert [line.split("=")[0] for line in lines] == ["replay_parameters"]
    own = f'[{{"type": "standard", "steps": {steps}, "sample_ratio": 1.0}}]'
    assert host_memory(small_plan(agent="sac", env="Reach-v0", replay_parameters=own)).total <= LITTLE


def test_a_replay_that_was_asked_for_and_a_reproducible_run_stay() -> None:
    asked = '[{"type": "standard", "steps": 900000, "sample_ratio": 1.0}]'
    assert fitted(LITTLE, replay_parameters=asked) == (900_000, [])
    assert fitted(LITTLE, reproducible=True) == (1_000_000, [])
