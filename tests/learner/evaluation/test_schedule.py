"""Evaluations are requested when they are due, and the checkpoint with the best mean return is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.evaluation import schedule as module
from learner.evaluation.evaluator import EvaluationResult
from learner.evaluation.schedule import EvaluationLog, EvaluationSchedule
from learner.metrics.summary import evaluation_lines
from learner.runs.checkpoint import Counters, load_checkpoint
from learner.runs.directory import RunDirectory
from tests.learner.runs.test_checkpoint import make_checkpoint
from tests.support import small_plan

PROTOCOL = {"protocol": "classic"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "Catch-v0")


class RecordingEvaluator:
    """Records the updates at which it is asked. A test sets `alive`, `ready` and `found`."""

    def __init__(self, *_: object) -> None:
        self.alive = self.ready = True
        self.found: EvaluationResult | None = None
        self.asked: list[int] = []

    def start(self) -> None:
        pass

    def ask(self, network: torch.nn.Module, counters: Counters) -> None:
        self.asked.append(counters.updates)

    def take(self) -> EvaluationResult | None:
        found, self.found = self.found, None
        return found

    def stop(self) -> None:
        pass


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> RecordingEvaluator:
    made = RecordingEvaluator()
    monkeypatch.setattr(module, "Evaluator", lambda *_: made)
    return made


class Schedule(EvaluationSchedule):
    """A schedule of a run that a test moves forward. added: the results that the run was given."""

    def __init__(self, run: RunDirectory, eval_period: int, update: int = 0, eval_seconds: float = 0.0) -> None:
        plan = small_plan(eval_period=eval_period, eval_seconds=eval_seconds)
        self.added: list[EvaluationResult] = []
        self.updates = Counters(updates=update)
        super().__init__(
            plan,
            run,
            torch.nn.Linear(1, 1),
            self.updates,
            None,
            make_checkpoint=lambda: make_checkpoint(self.updates.updates),
            add=self.added.append,
        )
        self.on_start()

    def step(self, update: int) -> None:
        self.updates.updates = update
        self.on_update()

    def finish(self, update: int, *, interrupted: bool = False, asked: Callable[[], bool] = lambda: False) -> None:
        self.updates.updates = update
        self.on_end(None, interrupted=interrupted, asked=asked)


def test_an_evaluation_is_requested_once_per_period(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    schedule = Schedule(run, eval_period=10, update=15)
    for update in range(16, 45):
        schedule.step(update)
    assert evaluator.asked == [20, 30, 40]


def test_an_evaluation_may_be_due_by_the_clock(
    run: RunDirectory, evaluator: RecordingEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    schedule = Schedule(run, eval_period=0, eval_seconds=5.0)
    for update in range(1, 10):
        now[0] += 2
        schedule.step(update)
    assert evaluator.asked == [3, 6, 9]


def test_an_evaluation_that_falls_due_during_another_waits_for_it(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    schedule = Schedule(run, eval_period=10)
    for update in range(1, 45):
        evaluator.ready = not 10 < update < 37
        schedule.step(update)
    assert evaluator.asked == [10, 37, 40]


def test_the_result_belongs_to_the_checkpoint_of_the_request(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    """Training goes on between the request and the result."""
    schedule = Schedule(run, eval_period=10)
    schedule.step(10)
    assert best(run) is None
    evaluator.found = EvaluationResult(10, 400, (1.0,))
    schedule.step(17)
    assert schedule.added == [EvaluationResult(10, 400, (1.0,))]
    assert best(run) == 10


class AnsweringEvaluator(RecordingEvaluator):
    """Answers each request at the third look for it, with the number of updates as return."""

    looks = 0

    def ask(self, network: torch.nn.Module, counters: Counters) -> None:
        super().ask(network, counters)
        self.ready, self.looks = False, 0

    def take(self) -> EvaluationResult | None:
        self.looks += 1
        if self.ready or self.looks < 3:
            return None
        self.ready = True
        return EvaluationResult(self.asked[-1], 10 * self.asked[-1], (float(self.asked[-1]),))


@pytest.mark.parametrize(
    ("updates", "found", "interrupted"),
    [
        (4, [4], False),  # a short run
        (10, [10], False),  # its evaluation is in progress
        (13, [10, 13], False),
        (13, [10, 13], True),  # a run that ends at --stop_at_steps
    ],
)
def test_the_final_policy_is_evaluated(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, updates: int, found: list[int], interrupted: bool
) -> None:
    monkeypatch.setattr(module, "Evaluator", AnsweringEvaluator)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    schedule = Schedule(run, eval_period=10)
    if updates >= 10:
        schedule.step(10)
    schedule.finish(updates, interrupted=interrupted)
    assert [evaluation.update for evaluation in schedule.added] == found
    assert best(run) == updates
    assert len(run.evaluations.read_text().splitlines()) == len(found)


def test_the_wait_for_the_final_evaluation_can_be_ended(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    schedule = Schedule(run, eval_period=10)
    evaluator.ready = False
    answers = iter([False, True])
    schedule.finish(13, asked=lambda: next(answers))
    assert (schedule.added, evaluator.asked) == ([], [])


def test_a_run_that_a_signal_has_ended_waits_for_no_evaluation(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    Schedule(run, eval_period=10).finish(13, interrupted=True, asked=lambda: True)
    assert evaluator.asked == []


@pytest.mark.parametrize("line", ["null", "[1]", "{}", '{"update": 1, "mean_return": "x", "protocol": {}}', "[" * 10**5, "\0"])
def test_lines_that_are_no_evaluation_are_left_out(run: RunDirectory, line: str) -> None:
    good = {"update": 1, "mean_return": 0.5, "protocol": {}}
    run.evaluations.write_bytes(f"{line}\n{json.dumps(good)}\n".encode() + b"\xff\xfe\n")
    assert evaluation_lines(run.evaluations) == [good]


def test_a_final_policy_that_cannot_or_need_not_be_evaluated_ends_the_run_at_once(
    run: RunDirectory, evaluator: RecordingEvaluator
) -> None:
    evaluator.alive = evaluator.ready = False  # it has failed too often
    Schedule(run, eval_period=10).finish(13)
    evaluator.alive = evaluator.ready = True
    Schedule(run, eval_period=10, update=13).finish(13)  # the resumed run made no update
    assert evaluator.asked == []


def test_stopping_discards_the_candidate(run: RunDirectory, evaluator: RecordingEvaluator) -> None:
    schedule = Schedule(run, eval_period=10)
    schedule.step(10)
    assert [path.name for path in run.checkpoints.iterdir()] == ["candidate.pt"]
    schedule.close()
    schedule.close()
    assert list(run.checkpoints.iterdir()) == []


def settle(log: EvaluationLog, update: int, *returns: float) -> None:
    log.propose(make_checkpoint(update))
    log.settle(EvaluationResult(update, 10 * update, returns))


def best(run: RunDirectory) -> int | None:
    return load_checkpoint(run.best).counters.updates if run.best.exists() else None


def test_the_checkpoint_with_the_best_mean_return_is_kept(run: RunDirectory) -> None:
    log = EvaluationLog(run, PROTOCOL)
    kept = []
    for update, score in ((1, -3.0), (2, 4.0), (3, 4.0), (4, 1.0), (5, 9.0)):
        settle(log, update, score)
        kept.append(best(run))
    assert kept == [1, 2, 2, 2, 5]
    written = [json.loads(line) for line in run.evaluations.read_text().splitlines()]
    assert [line["mean_return"] for line in written] == [-3.0, 4.0, 4.0, 1.0, 9.0]
    assert written[-1] == {"update": 5, "steps": 50, "mean_return": 9.0, "returns": [9.0], "protocol": PROTOCOL}
    log.discard()
    assert [path.name for path in run.checkpoints.iterdir()] == ["best.pt"]


@pytest.mark.parametrize("mean", [float("nan"), float("inf")])
def test_only_a_finite_mean_return_may_be_the_best(run: RunDirectory, mean: float) -> None:
    log = EvaluationLog(run, PROTOCOL)
    settle(log, 1, mean, 1.0)
    assert best(run) is None
    settle(log, 2, 5.0)
    assert best(run) == 2
    # A run of an earlier version may have kept such a checkpoint.
    run.evaluations.write_text(run.evaluations.read_text().replace("5.0", json.dumps(mean)))
    settle(EvaluationLog(run, PROTOCOL, make_checkpoint(2)), 3, -1.0)
    assert best(run) == 3


@pytest.mark.parametrize(
    ("protocol", "resumed_at", "kept"),
    [
        (PROTOCOL, 20, 10),  # 6.0 is still the best
        ({"protocol": "machado"}, 20, 30),  # a result of another protocol is not compared
        (PROTOCOL, 9, 30),  # the run resumed before that result
    ],
)
def test_a_resumed_run_compares_only_comparable_results(
    run: RunDirectory, protocol: dict[str, Any], resumed_at: int, kept: int
) -> None:
    settle(EvaluationLog(run, PROTOCOL), 10, 5.0, 7.0)
    log = EvaluationLog(run, protocol, replace(make_checkpoint(0), counters=Counters(updates=resumed_at)))
    settle(log, 30, 5.5)
    assert best(run) == kept


def test_a_full_disk_loses_the_candidate_but_not_the_run(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = EvaluationLog(run, PROTOCOL)
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", full)
        settle(log, 1, 5.0)
    assert best(run) is None
    settle(log, 2, 4.0)
    assert best(run) == 2
    assert len(lines) == 1
    assert "No space left on device" in lines[0]
