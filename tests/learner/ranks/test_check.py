"""The number of learners that a machine has room for, and the part of the machine that each of them gets."""

from __future__ import annotations

from typing import Any

import pytest

from learner import launch, prepare
from learner.machine.detect import Machine
from learner.machine.memory_check import check_memory, describe_memory, host_memory
from learner.ranks.check import check_learner_count
from learner.ranks.learner_process import VISIBLE_GPUS, gpu_of, plan_of_rank
from learner.settings.schema import default_settings
from tests.support import CATCH, small_plan

CORES = Machine(4, 8 * 10**9, None)
GPUS = Machine(16, 8 * 10**9, "GPU 9000", gpus=2)


def settings(**given: Any) -> dict[str, Any]:
    return {**default_settings(), **given}


def refusal_of(machine: Machine, given: dict[str, Any]) -> str:
    """The line with which a number of learners is refused, empty if it is allowed."""
    try:
        check_learner_count(settings(**given), machine, None)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("machine", "given"),
    [(CORES, {"learner_count": 4}), (GPUS, {"learner_count": 2}), (GPUS, {"learner_count": 16, "device": "cpu"})],
)
def test_as_many_learners_as_gpus_or_cores_are_allowed(machine: Machine, given: dict[str, Any]) -> None:
    assert refusal_of(machine, given) == ""


@pytest.mark.parametrize(
    ("machine", "given", "refusal"),
    [
        (CORES, {"learner_count": 5}, "learner_count: wanted at most 4, one learner for each core of this machine, got 5"),
        (
            GPUS,
            {"learner_count": 3},
            "learner_count: wanted at most 2, one learner for each GPU of this machine, got 3; --device=cpu has room for 16",
        ),
        (GPUS, {"learner_count": 17}, "learner_count: wanted at most 2, one learner for each GPU of this machine, got 17"),
    ],
)
def test_more_learners_are_refused(machine: Machine, given: dict[str, Any], refusal: str) -> None:
    assert refusal_of(machine, given) == refusal


def test_each_learner_is_fitted_to_its_part_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "detect_machine", lambda: CORES)
    given = {**CATCH, "worker_kind": "cpu", "learner_threads": "auto", "learner_count": 2}
    workers = [
        launch.prepare("train", {**given, "learner_count": count}, ["main.py"]).config.workers.worker_count for count in (1, 2)
    ]
    assert workers == [4, 2]


def test_memory_is_counted_for_each_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (small_plan(learner_count=count) for count in (1, 2))
    needed = host_memory(two).total
    assert describe_memory(two)[-1].startswith("Memory for each of 2 learners: at most ")
    assert describe_memory(one)[-1].startswith("Memory: at most ")
    check_memory(two, needed)
    with pytest.raises(ValueError, match="are available now for each of 2 learners"):
        check_memory(two, needed - 1)
    monkeypatch.setattr(prepare, "detect_machine", lambda: Machine(4, 2 * needed - 2, None))
    launch.prepare("train", CATCH, ["main.py"])
    with pytest.raises(ValueError, match="for each of 2 learners"):
        launch.prepare("train", {**CATCH, "learner_count": 2}, ["main.py"])


def test_learners_have_seeds_of_their_own_and_leave_the_rest_to_rank_0() -> None:
    plan = small_plan(learner_count=3, eval_period=5, eval_seconds=2.5, profile=7)
    first, second, later = (plan_of_rank(plan, rank, updates).config for rank, updates in ((1, 0), (2, 0), (1, 9)))
    assert len({each.training.seed for each in (plan.config, first, second, later)}) == 4
    assert plan.config.evaluation.evaluates
    assert not first.evaluation.evaluates
    assert first.output.profile == 0
    assert first.settings == plan.config.settings


@pytest.mark.parametrize(("visible", "gpu"), [(None, "1"), ("", "1"), ("3,5", "5"), ("GPU-a,GPU-b", "GPU-b")])
def test_each_learner_sees_one_of_the_gpus_of_rank_0(visible: str | None, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE_GPUS, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE_GPUS, visible)
    assert gpu_of(1) == gpu
