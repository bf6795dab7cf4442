"""Every verdict is reached, says the shares it rests on, and names a setting that would move the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from learner.metrics.bottleneck import Verdict, diagnose
from tests.support import small_config

ELITE = '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5}, {"type": "elite", "capacity": 40, "sample_ratio": 0.5}]'

HALF_IDLE = {
    "time/worker_env": 0.6,
    "time/worker_act": 0.3,
    "time/worker_write": 0.02,
    "time/worker_wait": 0.08,
    "time/worker_env_cpu": 0.59,
    "time/worker_act_cpu": 0.29,
    "time/learner_wait": 0.02,
    "time/learner_batch": 0.03,
    "time/learner_update": 0.9,
    "time/learner_publish": 0.01,
    "time/feeder_wait_workers": 0.0,
    "time/feeder_insert": 0.01,
    "time/feeder_sample": 0.01,
    "time/feeder_wait_learner": 0.0,
    "cores/workers": 1.8,
    "cores/learner": 1.0,
    "cores/beside": 0.0,
    "cores/others": 0.1,
    "cores/idle": 5.1,
    "charts/policy_lag": 2.0,
    "replay/queue/effective_sample_size": 0.97,
}
"""Two workers and a learner on eight cores, of which three are busy; the learner never waits."""

FULL: dict[str, float] = {"cores/others": 0.0, "cores/idle": 0.05}


def verdict(row: dict[str, float], cores: int = 8, **settings: Any) -> Verdict:
    config = small_config(**{"worker_kind": "cpu", "worker_count": 2, "learner_threads": 1, **settings})
    config = replace(config, settings={**config.settings, "precision": settings.get("precision", "auto")})  # as given
    found = diagnose({**HALF_IDLE, **row}, config, cores)
    assert found.line.startswith("Limited by ")
    assert "\n" not in found.line
    return found


def shares(**times: float) -> dict[str, float]:
    return {f"time/{name}": share for name, share in times.items()}


STARVED = shares(learner_wait=0.4, feeder_wait_workers=0.38, learner_update=0.5)


def test_a_learner_that_never_waits_is_the_limit() -> None:
    found = verdict(shares(worker_wait=0.41))
    assert found.limit == "learning"
    assert "workers wait 41 %" in found.line
    assert "updates take 91 %" in found.line
    for way in ("--learner_threads=3", "--network", "a GPU"):
        assert way in found.line
    assert "--precision" not in found.line
    assert "less replay" not in found.line


def test_of_a_learner_what_helps_depends_on_its_settings() -> None:
    assert "less replay" in verdict({}, replay_parameters=ELITE).line
    assert "--precision=auto" in verdict({}, precision="float32").line
    assert "--learner_threads" not in verdict({}, learner_threads=8).line
    on_gpu = verdict({}, device="cuda", prepared_batches=4).line
    assert "(GPU)" in on_gpu
    assert "a larger --batch_size" in on_gpu
    assert "a GPU" not in on_gpu
    assert "--learner_threads" not in on_gpu


@pytest.mark.parametrize("prepared_batches", [0, 2])
def test_workers_that_are_too_slow_beside_idle_cores(prepared_batches: int) -> None:
    found = verdict(STARVED, prepared_batches=prepared_batches)
    assert found.limit == "stepping"
    assert "step 60 %, act 30 % and wait 8 %" in found.line
    assert "the learner waits 38 %" in found.line
    assert "more --worker_count" in found.line
    assert "5.1 of 8 cores are idle" in found.line
    acting = verdict({**STARVED, **shares(worker_env=0.3, worker_act=0.6)}, prepared_batches=prepared_batches)
    assert acting.limit == "acting"


def test_one_policy_whose_answers_come_late() -> None:
    """More workers would have it answer later still."""
    late = verdict({**STARVED, **shares(worker_act=0.27)}, worker_kind="central", envs_per_worker=32)
    assert late.limit == "answers"
    assert "workers wait 27 % of their time for it and step 60 %, the learner waits 38 %" in late.line
    assert "--envs_per_worker=64" in late.line
    assert "--worker_count" not in late.line
    soon = verdict({**STARVED, **shares(worker_act=0.1)}, worker_kind="central")
    assert soon.limit == "stepping"
    assert "more --worker_count" in soon.line


@pytest.mark.parametrize(
    ("part", "row", "advice"),
    [
        ("stepping", shares(worker_env_cpu=0.5, worker_act_cpu=0.1) | {"cores/learner": 0.7}, "--replay_parameters"),
        ("acting", shares(worker_env_cpu=0.1, worker_act_cpu=0.5) | {"cores/learner": 0.7}, "--network"),
        ("learning", shares(worker_env_cpu=0.2, worker_act_cpu=0.1) | {"cores/learner": 1.3}, "a GPU"),
    ],
)
def test_where_all_cores_are_busy_the_largest_part_is_named(part: str, row: dict[str, float], advice: str) -> None:
    """Whoever waits for whom: here the learner waits for long, and more workers would still be no help."""
    found = verdict({**STARVED, **FULL, **row}, cores=2)
    assert found.limit == part
    assert "all 2 cores busy" in found.line
    assert f"{part} is most" in found.line
    assert advice in found.line
    assert "--worker_count" not in found.line
    assert "--learner_threads" not in found.line


def test_the_split_of_busy_cores_is_that_of_cpu_time() -> None:
    """Stepping seems to take 60 % of the wall time and computes for a third of that."""
    row = shares(worker_env=0.6, worker_env_cpu=0.2, worker_act_cpu=0.1) | {"cores/learner": 1.4}
    assert "stepping 20 %, acting 10 %, learning 70 %" in verdict({**FULL, **row}, cores=2).line


def test_a_process_that_waits_for_a_gpu_is_not_what_fills_the_cores() -> None:
    row = shares(worker_env_cpu=0.3, worker_act_cpu=0.2) | {"cores/learner": 1.0}
    assert verdict({**FULL, **row}, cores=2, device="cuda", prepared_batches=4).limit == "stepping"
    assert verdict({**FULL, **row}, cores=2).limit == "learning"


def test_replayed_data_is_no_advice_to_who_has_it() -> None:
    row = shares(worker_env_cpu=0.6, worker_act_cpu=0.1) | {"cores/learner": 0.4}
    assert "--replay_parameters" not in verdict({**FULL, **row}, cores=2, replay_parameters=ELITE).line


def test_other_programs_are_named_before_anything_else() -> None:
    found = verdict({**STARVED, "cores/others": 1.2, "cores/idle": 0.0}, cores=2)
    assert found.limit == "other programs"
    assert "1.2 of 2 cores" in found.line
    assert "this run 0.8" in found.line
    assert verdict({**STARVED, "cores/others": 0.2, "cores/idle": 0.0}, cores=2).limit != "other programs"
    assert verdict({**STARVED, "cores/others": 3.0, "cores/idle": 2.0}, cores=8).limit == "stepping"


def test_a_core_on_which_only_evaluation_runs_is_free_for_workers() -> None:
    found = verdict({**STARVED, "cores/beside": 1.0, "cores/idle": 0.0}, cores=2)
    assert found.limit == "stepping"
    assert "1.0 of 2 cores are idle" in found.line


def test_a_system_that_does_not_tell_of_other_programs() -> None:
    config = small_config(worker_kind="cpu", worker_count=2)
    row = {name: value for name, value in {**HALF_IDLE, **FULL}.items() if name != "cores/others"}
    assert diagnose(row, config, 2).limit == "stepping"


def test_batches_that_the_learner_makes_itself() -> None:
    row = shares(learner_update=0.5, learner_wait=0.35, feeder_sample=0.3, feeder_insert=0.05, learner_batch=0.1)
    found = verdict(row, prepared_batches=0)
    assert found.limit == "batch preparation"
    assert "drawing 30 %" in found.line
    assert "--prepared_batches=2" in found.line


SLOW_THREAD = shares(learner_update=0.6, learner_wait=0.35, feeder_sample=0.9, feeder_insert=0.08, feeder_wait_workers=0.01)


def test_a_thread_that_cannot_make_batches_fast_enough() -> None:
    found = verdict(SLOW_THREAD, prepared_batches=2, replay_parameters=ELITE)
    assert found.limit == "batch preparation"
    assert "the learner waits 34 %" in found.line
    assert "lambda_batch_multiplier" in found.line
    assert "--nocompress_replay" not in found.line
    compressed = verdict(SLOW_THREAD, prepared_batches=2, compress_replay=True)
    assert "--nocompress_replay" in compressed.line
    assert "--frame_scale_resolution" in verdict(SLOW_THREAD, prepared_batches=2).line


def test_a_thread_that_makes_batches_in_time_but_not_ahead() -> None:
    row = {**SLOW_THREAD, **shares(feeder_sample=0.3, feeder_wait_learner=0.6)}
    assert "--prepared_batches=4" in verdict(row, prepared_batches=2).line


@pytest.mark.parametrize(("prepared_batches", "advice"), [(0, "--prepared_batches=2"), (2, "--worker_count")])
def test_learner_and_workers_that_wait_for_each_other(prepared_batches: int, advice: str) -> None:
    found = verdict({**STARVED, **shares(worker_wait=0.4)}, prepared_batches=prepared_batches)
    assert found.limit == "taking turns"
    assert advice in found.line


def test_one_process_uses_one_core() -> None:
    found = verdict(STARVED, worker_kind="serial", worker_count=1)
    assert found.limit == "one process"
    assert "--worker_kind=cpu" in found.line
    assert "without --reproducible" in verdict(STARVED, worker_kind="serial", worker_count=1, reproducible=True).line
    assert verdict({**STARVED, **FULL}, cores=1, worker_kind="serial", worker_count=1).limit == "learning"


def test_fresh_data_that_is_too_old_is_told_beside_the_limit() -> None:
    assert "Fresh data" not in verdict({}).line
    found = verdict({"replay/queue/effective_sample_size": 0.55, "charts/policy_lag": 14.2})
    assert found.limit == "learning"
    assert found.line.endswith(
        "Fresh data is 14 updates old and worth 55 % of its size: fewer --envs_per_worker or a larger --batch_size"
    )
