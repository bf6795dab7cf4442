"""The evaluation process plays whole episodes of exactly the requested policy, and its failures never stop training."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from learner.evaluation import evaluator as module
from learner.evaluation.evaluator import HANG_SECONDS, MAX_FAILURES, EvaluationResult, Evaluator
from learner.evaluation.evaluator_process import LOWEST_PRIORITY, Answer
from learner.plan import make_plan
from learner.runs.checkpoint import Counters
from tests.learner.evaluation.support import network_that_does
from tests.support import small_config, small_plan
from workers.processes.launcher import StartedProcess

PATIENCE = 120.0  # seconds; a busy machine starts processes slowly
DISABLED = "Evaluation is disabled for the rest of this run."


def lowest_scheduling() -> int:
    """SCHED_IDLE, or the policy that a sandbox uses instead. Another process tries it."""
    code = (
        "import os\ntry: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nfinally: print(os.sched_getscheduler(0))"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout)


@pytest.fixture
def make_evaluator(tmp_path: Path) -> Iterator[Callable[..., Evaluator]]:
    made: list[Evaluator] = []

    def make(**settings: Any) -> Evaluator:
        made.append(Evaluator(small_plan(**settings), network_that_does(0), tmp_path / "evaluation.gif"))
        made[-1].start()
        return made[-1]

    yield make
    for evaluator in made:
        evaluator.stop()


def wait_for(evaluator: Evaluator, done: Callable[[], bool] = lambda: False) -> EvaluationResult | None:
    """Return the first evaluation that arrives, or None as soon as `done` returns true."""
    end = monotonic() + PATIENCE
    while monotonic() < end and not done():
        if found := evaluator.take():
            return found
        if evaluator.pid:
            evaluator._answers.poll(0.05)
    assert done(), f"wanted an evaluation within {PATIENCE} s, got none"
    return None


def boards_of(animation: Path) -> list[np.ndarray]:
    """The boards of Catch in a GIF, bool `[10, 5]` each."""
    with Image.open(animation) as gif:
        pictures = []
        for index in range(gif.n_frames):
            gif.seek(index)
            pictures.append(np.asarray(gif.convert("L")) > 127)
    height, width = (length // cells for length, cells in zip(pictures[0].shape, (10, 5), strict=True))
    return [picture[height // 2 :: height, width // 2 :: width] for picture in pictures]


def assert_the_policy_went_left(boards: list[np.ndarray]) -> None:
    """The paddle of one episode of Catch moves to column 0 and stays, and the ball falls one row a step in its column."""
    paddle = [np.flatnonzero(board[-1])[0] for board in boards]
    ball = [np.argwhere(board[:-1])[0] for board in boards[:-1]]
    assert paddle[:-1] == [2, 1, 0, 0, 0, 0, 0, 0, 0]
    assert [row for row, _ in ball] == list(range(9))
    assert len({column for _, column in ball}) == 1


def test_the_process_evaluates_the_requested_policy(make_evaluator: Callable[..., Evaluator]) -> None:
    """The ball falls into a random column of five. A policy that always goes LEFT catches it in the first column only."""
    evaluator = make_evaluator(eval_episodes=30)
    network = network_that_does(0)
    assert evaluator.ready
    evaluator.ask(network, Counters(steps=400, updates=10))
    with torch.no_grad():
        network.policy_head.bias.zero_()  # training changes the weights during the evaluation
    assert not evaluator.ready
    first = wait_for(evaluator)
    assert first is not None
    assert (first.update, first.steps, len(first.returns)) == (10, 400, 30)
    assert set(first.returns) <= {-1.0, 1.0}
    assert -1.0 < first.mean_return < 0.2
    assert first.animation is not None
    assert_the_policy_went_left(boards_of(first.animation))
    assert evaluator.ready
    evaluator.ask(network, Counters(updates=20))
    second = wait_for(evaluator)
    assert second is not None
    assert second.animation is None, "wanted no second animation within ANIMATION_PERIOD"


def test_the_process_has_the_lowest_priority(make_evaluator: Callable[..., Evaluator]) -> None:
    evaluator = make_evaluator(eval_episodes=1)
    evaluator.ask(network_that_does(0), Counters(updates=10))
    assert wait_for(evaluator) is not None
    assert evaluator.pid is not None
    assert evaluator.pid != os.getpid()
    assert os.getpriority(os.PRIO_PROCESS, evaluator.pid) == LOWEST_PRIORITY
    assert os.sched_getscheduler(evaluator.pid) == lowest_scheduling()


def test_a_process_that_dies_is_restarted_and_repeats_the_request(make_evaluator: Callable[..., Evaluator]) -> None:
    evaluator = make_evaluator(eval_episodes=30)
    evaluator.ask(network_that_does(2), Counters(updates=30))
    assert evaluator.pid is not None
    os.kill(evaluator.pid, signal.SIGKILL)
    found = wait_for(evaluator)
    assert found is not None
    assert (found.update, len(found.returns)) == (30, 30)


def test_evaluation_is_disabled_when_the_process_keeps_dying(
    make_evaluator: Callable[..., Evaluator], lines: list[str]
) -> None:
    evaluator = make_evaluator()
    for _ in range(MAX_FAILURES + 1):
        process = evaluator.pid
        assert process is not None
        os.kill(process, signal.SIGKILL)
        wait_for(evaluator, lambda process=process: evaluator.pid != process)  # type: ignore[misc]
    assert evaluator.pid is None
    assert [DISABLED in line for line in lines] == [False] * MAX_FAILURES + [True]
    assert not evaluator.ready
    assert evaluator.take() is None


def test_evaluation_is_disabled_when_the_process_cannot_be_started(
    make_evaluator: Callable[..., Evaluator], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = make_evaluator()
    evaluator.ask(network_that_does(2), Counters(updates=10))

    def no_process(*_: object, name: str) -> StartedProcess:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(module, "start_process", no_process)
    evaluator._receive("ValueError: no such game")
    assert "Resource temporarily unavailable" in lines[-1]
    assert DISABLED in lines[-1]
    assert evaluator.take() is None
    assert not evaluator.ready


def test_an_error_in_the_process_is_logged(make_evaluator: Callable[..., Evaluator], lines: list[str]) -> None:
    evaluator = make_evaluator()
    evaluator._receive("Traceback\n  somewhere\nValueError: no such game\n")
    assert "ValueError: no such game" in lines[-1]
    assert f"failure 1 of at most {MAX_FAILURES}" in lines[-1]


def test_an_evaluation_without_a_result_is_logged_and_the_next_one_can_begin(
    make_evaluator: Callable[..., Evaluator], lines: list[str]
) -> None:
    evaluator = make_evaluator()
    evaluator._under_way = Counters(updates=10)
    process = evaluator.pid
    assert evaluator._receive(Answer((), problem="environment 3")) is None
    assert lines == ["environment 3"]
    assert evaluator.ready
    assert evaluator.pid == process


def test_a_process_that_hangs_is_restarted(
    make_evaluator: Callable[..., Evaluator], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = make_evaluator()
    before = evaluator.pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    evaluator.ask(network_that_does(0), Counters(updates=10))
    now = [monotonic()]

    def later() -> float:
        now[0] += 0.5
        return now[0]

    monkeypatch.setattr(module, "monotonic", later)
    while evaluator.pid == before:
        assert evaluator.take() is None
    assert "hung: no step for" in lines[-1]
    assert now[0] - monotonic() > 100


@pytest.mark.parametrize(
    ("worker_timeout", "reset_seconds", "wanted"), [(3.0, 0.0, HANG_SECONDS), (200.0, 0.0, 200.0), (3.0, 50.0, 100.0)]
)
def test_a_step_may_take_as_long_as_in_workers(
    worker_timeout: float, reset_seconds: float, wanted: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as long as two environments need to reset one after the other."""
    timeouts = []

    def refused(*_: object, **__: object) -> StartedProcess:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "Heartbeat", lambda *_, timeout, **__: timeouts.append(timeout))
    monkeypatch.setattr(module, "start_process", refused)
    described = module.describe_env
    monkeypatch.setattr(module, "describe_env", lambda config: replace(described(config), reset_seconds=reset_seconds))
    config = small_config(worker_timeout=worker_timeout, eval_episodes=2)
    evaluator = Evaluator(make_plan(config), network_that_does(0), tmp_path / "evaluation.gif")
    evaluator.start()
    evaluator.stop()
    assert timeouts == [wanted]


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert EvaluationResult(1, 1, (1.0, 3.0, 5.0, 7.0)).standard_error == pytest.approx(math.sqrt(20 / 3 / 4))
    assert math.isnan(EvaluationResult(1, 1, (1.0,)).standard_error)
