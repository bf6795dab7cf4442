"""Each rule applies where it should, and its line has the numbers it rests on and a setting to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from learner.metrics.bottleneck import Bottleneck, BottleneckReport, find_bottleneck
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
    "cores/evaluation": 0.0,
    "cores/others": 0.1,
    "cores/idle": 5.1,
    "charts/policy_lag": 2.0,
    "replay/queue/effective_sample_size": 0.97,
}
"""Two workers and a learner on eight cores, of which three are busy; the learner never waits."""

FULL: dict[str, float] = {"cores/others": 0.0, "cores/idle": 0.05}


def bottleneck(record: dict[str, float], cores: int = 8, **settings: Any) -> Bottleneck:
    config = small_config(**{"worker_kind": "cpu", "worker_count": 2, "learner_threads": 1, **settings})
    config = replace(config, settings={**config.settings, "precision": settings.get("precision", "auto")})  # as given
    found = find_bottleneck({**HALF_IDLE, **record}, config, cores)
    assert found.line.startswith("Limited by ")
    assert "\n" not in found.line
    return found


def times(**fractions: float) -> dict[str, float]:
    """Fractions of wall time under their metric names."""
    return {f"time/{name}": fraction for name, fraction in fractions.items()}


STARVED = times(learner_wait=0.4, feeder_wait_workers=0.38, learner_update=0.5)


def test_a_learner_that_never_waits_is_the_bottleneck() -> None:
    found = bottleneck(times(worker_wait=0.41))
    assert found.name == "learning"
    assert "workers wait for it 41 %" in found.line
    assert "updates take 91 %" in found.line
    for way in ("--learner_threads=3", "--network", "a GPU"):
        assert way in found.line
    assert "--precision" not in found.line
    assert "less replay" not in found.line


def test_the_advice_for_a_slow_learner_depends_on_its_settings() -> None:
    assert "less replay" in bottleneck({}, replay_parameters=ELITE).line
    assert "--precision=auto" in bottleneck({}, precision="float32").line
    assert "--learner_threads" not in bottleneck({}, learner_threads=8).line
    on_gpu = bottleneck({}, device="cuda", prepared_batches=4).line
    assert "(GPU)" in on_gpu
    assert "a larger --batch_size" in on_gpu
    assert "a GPU" not in on_gpu
    assert "--learner_threads" not in on_gpu


@pytest.mark.parametrize("prepared_batches", [0, 2])
def test_workers_that_are_too_slow_while_cores_are_idle(prepared_batches: int) -> None:
    found = bottleneck(STARVED, prepared_batches=prepared_batches)
    assert found.name == "stepping"
    assert "step 60 %, act 30 % and wait 8 %" in found.line
    assert "the learner waits 38 %" in found.line
    assert "more --worker_count" in found.line
    assert "5.1 of 8 cores are idle" in found.line
    acting = bottleneck({**STARVED, **times(worker_env=0.3, worker_act=0.6)}, prepared_batches=prepared_batches)
    assert acting.name == "acting"


def test_a_central_policy_that_answers_late() -> None:
    """More workers would make it answer even later."""
    late = bottleneck({**STARVED, **times(worker_act=0.27)}, worker_kind="central", envs_per_worker=32)
    assert late.name == "central policy"
    assert "workers wait for it 27 % of their time and step 60 %, the learner waits 38 %" in late.line
    assert "--envs_per_worker=64" in late.line
    assert "--worker_count" not in late.line
    soon = bottleneck({**STARVED, **times(worker_act=0.1)}, worker_kind="central")
    assert soon.name == "stepping"
    assert "more --worker_count" in soon.line


@pytest.mark.parametrize(
    ("part", "record", "advice"),
    [
        ("stepping", times(worker_env_cpu=0.5, worker_act_cpu=0.1) | {"cores/learner": 0.7}, "--replay_parameters"),
        ("acting", times(worker_env_cpu=0.1, worker_act_cpu=0.5) | {"cores/learner": 0.7}, "--network"),
        ("learning", times(worker_env_cpu=0.2, worker_act_cpu=0.1) | {"cores/learner": 1.3}, "a GPU"),
    ],
)
def test_where_all_cores_are_busy_the_largest_part_is_named(part: str, record: dict[str, float], advice: str) -> None:
    """The learner waits here too, but more workers would not help."""
    found = bottleneck({**STARVED, **FULL, **record}, cores=2)
    assert found.name == part
    assert "all 2 cores are busy" in found.line
    assert f"{part} takes most" in found.line
    assert advice in found.line
    assert "--worker_count" not in found.line
    assert "--learner_threads" not in found.line


def test_busy_cores_are_divided_by_cpu_time() -> None:
    """Stepping takes 60 % of the wall time, but only a third of that is CPU time."""
    record = times(worker_env=0.6, worker_env_cpu=0.2, worker_act_cpu=0.1) | {"cores/learner": 1.4}
    assert "stepping 20 %, acting 10 %, learning 70 %" in bottleneck({**FULL, **record}, cores=2).line


def test_a_process_that_waits_for_a_gpu_does_not_count_as_busy() -> None:
    record = times(worker_env_cpu=0.3, worker_act_cpu=0.2) | {"cores/learner": 1.0}
    assert bottleneck({**FULL, **record}, cores=2, device="cuda", prepared_batches=4).name == "stepping"
    assert bottleneck({**FULL, **record}, cores=2).name == "learning"


def test_replayed_data_is_not_advised_to_a_run_that_has_it() -> None:
    record = times(worker_env_cpu=0.6, worker_act_cpu=0.1) | {"cores/learner": 0.4}
    assert "--replay_parameters" not in bottleneck({**FULL, **record}, cores=2, replay_parameters=ELITE).line


def test_other_programs_are_named_before_anything_else() -> None:
    found = bottleneck({**STARVED, "cores/others": 1.2, "cores/idle": 0.0}, cores=2)
    assert found.name == "other programs"
    assert "1.2 of 2 cores" in found.line
    assert "this run 0.8" in found.line
    assert "this run 0.0" in bottleneck({**STARVED, "cores/others": 2.04, "cores/idle": 0.0}, cores=2).line
    assert bottleneck({**STARVED, "cores/others": 0.2, "cores/idle": 0.0}, cores=2).name != "other programs"
    assert bottleneck({**STARVED, "cores/others": 3.0, "cores/idle": 2.0}, cores=8).name == "stepping"


def test_a_core_that_only_evaluates_counts_as_idle() -> None:
    found = bottleneck({**STARVED, "cores/evaluation": 1.0, "cores/idle": 0.0}, cores=2)
    assert found.name == "stepping"
    assert "1.0 of 2 cores are idle" in found.line


def test_a_system_that_does_not_report_other_programs() -> None:
    config = small_config(worker_kind="cpu", worker_count=2)
    record = {name: value for name, value in {**HALF_IDLE, **FULL}.items() if name != "cores/others"}
    assert find_bottleneck(record, config, 2).name == "stepping"


def test_batch_preparation_in_the_learner_s_own_thread() -> None:
    record = times(learner_update=0.5, learner_wait=0.35, feeder_sample=0.3, feeder_insert=0.05, learner_batch=0.1)
    found = bottleneck(record, prepared_batches=0)
    assert found.name == "batch preparation"
    assert "drawing 30 %" in found.line
    assert "--prepared_batches=2" in found.line


SLOW_THREAD = times(learner_update=0.6, learner_wait=0.35, feeder_sample=0.9, feeder_insert=0.08, feeder_wait_workers=0.01)


def test_a_feeder_thread_that_is_too_slow() -> None:
    found = bottleneck(SLOW_THREAD, prepared_batches=2, replay_parameters=ELITE)
    assert found.name == "batch preparation"
    assert "the learner waits 34 %" in found.line
    assert "lambda_batch_multiplier" in found.line
    assert "--nocompress_replay" not in found.line
    compressed = bottleneck(SLOW_THREAD, prepared_batches=2, compress_replay=True)
    assert "--nocompress_replay" in compressed.line
    assert "--frame_scale_resolution" in bottleneck(SLOW_THREAD, prepared_batches=2, env="PongNoFrameskip-v4").line
    assert "--batch_size" in bottleneck(SLOW_THREAD, prepared_batches=2).line  # Catch has one size


def test_advice_names_only_settings_that_the_environment_takes() -> None:
    for env, takes in (("PongNoFrameskip-v4", True), ("CartPole-v1", False)):
        line = bottleneck({**FULL, **times(worker_act_cpu=0.9, worker_env_cpu=0.05)}, env=env, learner_threads=8).line
        assert ("--frame_scale_resolution" in line) is takes, line


def test_a_feeder_thread_that_may_prepare_more_batches_ahead() -> None:
    record = {**SLOW_THREAD, **times(feeder_sample=0.3, feeder_wait_learner=0.6)}
    assert "--prepared_batches=4" in bottleneck(record, prepared_batches=2).line


@pytest.mark.parametrize(("prepared_batches", "advice"), [(0, "--prepared_batches=2"), (2, "--worker_count")])
def test_learner_and_workers_that_wait_for_each_other(prepared_batches: int, advice: str) -> None:
    found = bottleneck({**STARVED, **times(worker_wait=0.4)}, prepared_batches=prepared_batches)
    assert found.name == "taking turns"
    assert advice in found.line


def test_one_process_uses_one_core() -> None:
    found = bottleneck(STARVED, worker_kind="serial", worker_count=1)
    assert found.name == "one process"
    assert "--worker_kind=cpu" in found.line
    assert "without --reproducible" in bottleneck(STARVED, worker_kind="serial", worker_count=1, reproducible=True).line
    assert bottleneck({**STARVED, **FULL}, cores=1, worker_kind="serial", worker_count=1).name == "learning"


def test_fresh_data_that_is_too_old_is_named_after_the_bottleneck() -> None:
    assert "Fresh data" not in bottleneck({}).line
    found = bottleneck({"replay/queue/effective_sample_size": 0.55, "charts/policy_lag": 14.2})
    assert found.name == "learning"
    assert found.line.endswith(
        "Fresh data is 14 updates old, its effective sample size is 55 %: use fewer --envs_per_worker or a larger --batch_size"
    )


def report() -> BottleneckReport:
    return BottleneckReport(small_config(worker_kind="cpu", worker_count=2), cores=8)


def overall(*records: tuple[dict[str, float], float]) -> str | None:
    """The bottleneck of a run with these records, each with its seconds."""
    bottlenecks = report()
    for record, seconds in records:
        bottlenecks.add({**HALF_IDLE, **record}, seconds)
    found = bottlenecks.overall()
    return found.name if found else None


def test_the_first_record_is_start_up() -> None:
    assert overall((STARVED, 100.0)) is None
    assert overall((STARVED, 100.0), ({}, 10.0)) == "learning"
    assert overall(({}, 100.0), (STARVED, 10.0)) == "stepping"


def test_a_record_counts_by_its_seconds() -> None:
    """The learner waits 38 % in one record and never in the other; from 15 % on it counts as waiting."""
    assert overall(({}, 1.0), (STARVED, 10.0), ({}, 30.0)) == "learning"
    assert overall(({}, 1.0), (STARVED, 30.0), ({}, 10.0)) == "stepping"


def test_a_few_seconds_give_no_bottleneck() -> None:
    assert overall(({}, 10.0), (STARVED, 4.0)) is None
    assert overall(({}, 10.0), (STARVED, 3.0), (STARVED, 3.0)) == "stepping"


def test_each_record_has_its_own_bottleneck() -> None:
    bottlenecks = report()
    record = {**HALF_IDLE, **STARVED}
    assert bottlenecks.add(record, 10.0) is None
    found = [bottlenecks.add(record, 10.0), bottlenecks.add(HALF_IDLE, 10.0)]
    assert [bottleneck and bottleneck.name for bottleneck in found] == ["stepping", "learning"]
    assert bottlenecks.add(record, 1.0) is None


def test_a_number_that_some_records_lack_is_the_mean_of_the_others() -> None:
    bottlenecks = report()
    bottlenecks.add(HALF_IDLE, 10.0)
    bottlenecks.add({**HALF_IDLE, "replay/queue/effective_sample_size": 0.5}, 10.0)
    bottlenecks.add({name: value for name, value in HALF_IDLE.items() if "effective" not in name}, 90.0)
    found = bottlenecks.overall()
    assert found
    assert "effective sample size is 50 %" in found.line


def test_an_agent_without_an_effective_sample_size_gets_no_advice_on_staleness() -> None:
    record = {name: value for name, value in HALF_IDLE.items() if not name.startswith(("replay/", "charts/"))}
    config = small_config(worker_kind="cpu", worker_count=2)
    assert find_bottleneck(record, config, 8).line == find_bottleneck(HALF_IDLE, config, 8).line


@pytest.mark.parametrize("missing", sorted(HALF_IDLE))
def test_a_record_without_one_of_the_numbers_still_has_a_bottleneck(missing: str) -> None:
    record = {name: value for name, value in HALF_IDLE.items() if name != missing}
    assert find_bottleneck(record, small_config(worker_kind="cpu", worker_count=2), 8).line.startswith("Limited by ")


@pytest.mark.parametrize(
    ("record", "name", "advice"),
    [
        (times(learner_update=0.7, worker_env=0.1, worker_act=0.1), "learning", "--network"),
        (times(learner_update=0.2, worker_env=0.5, worker_act=0.1), "stepping", "--worker_count"),
        (times(learner_update=0.2, worker_env=0.1, worker_act=0.5), "acting", "--network"),
    ],
)
def test_an_on_policy_agent_s_turns_are_named_and_no_batch_is_prepared_ahead(
    record: dict[str, float], name: str, advice: str
) -> None:
    given = {"agent": "ppo", "worker_count": 2, "envs_per_worker": 2, "batch_size": 4}
    found = bottleneck({**record, **times(worker_wait=0.5, learner_wait=0.4)}, **given)
    assert found.name == name
    assert "turns of workers and learner, which agent ppo needs" in found.line
    assert advice in found.line
    assert "prepared_batches" not in found.line


def test_another_learner_that_has_no_batches_is_named() -> None:
    waits = {"ranks/wait_0": 0.3, "ranks/wait_1": 0.25, "ranks/wait_2": 0.02}
    found = bottleneck(waits, learner_count=3)
    assert found.name == "another learner"
    assert "the learner of rank 2" in found.line
    assert "30 %" in found.line
    assert bottleneck({**waits, "ranks/wait_0": 0.1}, learner_count=3).name != "another learner"


PACED = {"agent": "sac", "env": "Reach-v0", "batch_size": 16}


def test_workers_that_wait_for_the_pace_do_so_on_purpose() -> None:
    found = bottleneck({**FULL, **times(worker_wait=0.8)}, cores=2, **PACED, updates_per_step=2.0)
    assert found.name == "pace"
    assert "2 updates a step: workers wait on purpose 80 %" in found.line
    assert "updates take 91 % of the learner's" in found.line
    assert "less replay" not in found.line
    assert bottleneck({**STARVED, **times(worker_wait=0.8)}, **PACED).name == "taking turns"
    assert bottleneck(times(worker_wait=0.05), **PACED).name == "learning"
