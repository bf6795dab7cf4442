"""Evaluation beside training: exact weights, whole episodes, and no failure of it that training would notice."""

from __future__ import annotations

import errno
import json
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

from agents.networks.actor_critic import ActorCritic, make_network
from learner.evaluation import evaluator as module
from learner.evaluation import evaluator_process
from learner.evaluation.evaluations import EvaluationLog
from learner.evaluation.evaluator import Evaluation, Evaluator
from learner.evaluation.evaluator_process import LOWEST_PRIORITY
from learner.runs.checkpoint import Counters, load_checkpoint
from learner.runs.directory import RunDirectory
from tests.learner.runs.support import make_checkpoint
from tests.support import small_config
from workers.processes.launcher import Child
from wrappers import make_spec

PATIENCE = 120.0  # a busy machine starts processes slowly


def lowest_scheduling() -> int:
    """SCHED_IDLE, or what a sandbox has in its place; tried in another process."""
    code = (
        "import os\ntry: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nfinally: print(os.sched_getscheduler(0))"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout)


def network_that_does(action: int) -> ActorCritic:
    """Always the same action in Catch: LEFT, STAY, RIGHT."""
    config = small_config()
    spec = make_spec(config.env)
    network = make_network(config.network, spec.observation_shape, spec.action_count)
    with torch.no_grad():
        network.policy_head.weight.zero_()
        network.policy_head.bias.copy_(torch.nn.functional.one_hot(torch.tensor(action), spec.action_count) * 1e4)
    return network


@pytest.fixture
def make_evaluator(tmp_path: Path) -> Iterator[Callable[..., Evaluator]]:
    made: list[Evaluator] = []

    def make(**settings: Any) -> Evaluator:
        made.append(Evaluator(small_config(eval_period=10, **settings), network_that_does(0), tmp_path / "evaluation.gif"))
        made[-1].start(0)
        return made[-1]

    yield make
    for one in made:
        one.stop()


def wait_for(evaluator: Evaluator, done: Callable[[], bool] = lambda: False) -> Evaluation | None:
    """Until an evaluation comes in, or `done` says so."""
    end = monotonic() + PATIENCE
    while monotonic() < end and not done():
        if found := evaluator.take():
            return found
        if evaluator.pid:
            evaluator._answers.poll(0.05)
    assert done(), "nothing came in"
    return None


def boards_of(animation: Path) -> list[np.ndarray]:
    """The boards of Catch that a GIF shows, bool `[10, 5]`."""
    with Image.open(animation) as gif:
        pictures = []
        for index in range(gif.n_frames):
            gif.seek(index)
            pictures.append(np.asarray(gif.convert("L")) > 127)
    height, width = (length // cells for length, cells in zip(pictures[0].shape, (10, 5), strict=True))
    return [picture[height // 2 :: height, width // 2 :: width] for picture in pictures]


def test_it_plays_the_policy_it_was_asked_about_by_another_process_of_low_priority(
    make_evaluator: Callable[..., Evaluator],
) -> None:
    """The ball falls into a random one of five columns: who always goes LEFT catches the first one only, RIGHT the last."""
    evaluator = make_evaluator(eval_episodes=30)
    network = network_that_does(0)
    assert not evaluator.due(9)
    assert evaluator.due(10)
    evaluator.ask(network, Counters(steps=400, updates=10))
    with torch.no_grad():
        network.policy_head.bias.zero_()  # the learner goes on
    assert not evaluator.due(20), "one at a time"
    first = wait_for(evaluator)
    assert first is not None
    assert (first.update, first.steps, len(first.returns)) == (10, 400, 30)
    assert set(first.returns) <= {-1.0, 1.0}
    assert -1.0 < first.mean_return < 0.2
    assert first.animation is not None
    paddle = [np.flatnonzero(board[-1])[0] for board in boards_of(first.animation)]
    ball = [np.argwhere(board[:-1]) for board in boards_of(first.animation)[:-1]]
    assert paddle[:-1] == [2, 1, 0, 0, 0, 0, 0, 0, 0], "what is shown is what this policy played"
    assert [cells[0, 0] for cells in ball] == list(range(9))
    assert len({cells[0, 1] for cells in ball}) == 1
    assert evaluator.pid is not None
    assert evaluator.pid != os.getpid()
    assert os.getpriority(os.PRIO_PROCESS, evaluator.pid) == LOWEST_PRIORITY
    assert os.sched_getscheduler(evaluator.pid) == lowest_scheduling()
    assert not evaluator.due(19)
    assert evaluator.due(20)
    evaluator.ask(network, Counters(updates=20))
    soon = wait_for(evaluator)
    assert soon is not None
    assert soon.animation is None, "one every two minutes is enough"

    evaluator.ask(network_that_does(2), Counters(updates=30))
    os.kill(evaluator.pid, signal.SIGKILL)  # it is started again and plays what it was asked for
    second = wait_for(evaluator)
    assert second is not None
    assert second.update == 30
    assert second.returns != first.returns


def test_where_the_system_has_one_kind_of_scheduling_it_is_only_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    nice: list[int] = []

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    evaluator_process._give_way_to_all()
    assert nice == [LOWEST_PRIORITY]


def test_a_process_that_keeps_dying_is_given_up(make_evaluator: Callable[..., Evaluator], lines: list[str]) -> None:
    evaluator = make_evaluator()
    for _ in range(module.MOST_FAILURES + 1):
        process = evaluator.pid
        assert process is not None
        os.kill(process, signal.SIGKILL)
        wait_for(evaluator, lambda process=process: evaluator.pid != process)  # type: ignore[misc]
    assert evaluator.pid is None
    assert ["started again" in line for line in lines] == [True, True, True, False]
    assert "this run evaluates no more" in lines[-1]
    assert not evaluator.due(10)
    assert evaluator.take() is None


def test_a_process_that_cannot_be_started_does_not_stop_training(
    make_evaluator: Callable[..., Evaluator], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = make_evaluator()
    evaluator.ask(network_that_does(2), Counters(updates=10))

    def no_process(*_: object, name: str) -> Child:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(module, "start_process", no_process)
    evaluator._hear("ValueError: no such game")
    assert "could not be started (Resource temporarily unavailable): this run evaluates no more" in lines[-1]
    assert evaluator.take() is None
    assert not evaluator.due(20)


def test_what_goes_wrong_in_the_process_is_told(make_evaluator: Callable[..., Evaluator], lines: list[str]) -> None:
    evaluator = make_evaluator()
    evaluator._hear("Traceback\n  somewhere\nValueError: no such game\n")
    assert "failed: ValueError: no such game; started again (failure 1 of 3)" in lines[-1]


def test_a_process_that_hangs_is_started_again(
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
    assert "hung: no step for 120 s" in lines[-1]
    assert now[0] - monotonic() > 100


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert Evaluation(1, 1, (1.0, 3.0, 5.0, 7.0)).standard_error == pytest.approx(math.sqrt(20 / 3 / 4))
    assert math.isnan(Evaluation(1, 1, (1.0,)).standard_error)


PROTOCOL = {"protocol": "classic"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "Catch-v0")


def settle(log: EvaluationLog, update: int, *returns: float) -> None:
    log.propose(make_checkpoint(update))
    log.settle(Evaluation(update, 10 * update, returns))


def best(run: RunDirectory) -> int | None:
    return load_checkpoint(run.best).counters.updates if run.best.exists() else None


def test_the_checkpoint_that_played_best_is_kept(run: RunDirectory) -> None:
    log = EvaluationLog(run, PROTOCOL)
    kept = []
    for update, score in ((1, -3.0), (2, 4.0), (3, 4.0), (4, 1.0), (5, 9.0)):
        settle(log, update, score)
        kept.append(best(run))
    assert kept == [1, 2, 2, 2, 5]
    told = [json.loads(line) for line in run.evaluations.read_text().splitlines()]
    assert [line["mean_return"] for line in told] == [-3.0, 4.0, 4.0, 1.0, 9.0]
    assert told[-1] == {"update": 5, "steps": 50, "mean_return": 9.0, "returns": [9.0], "protocol": PROTOCOL}
    log.forget()
    assert [path.name for path in run.checkpoints.iterdir()] == ["best.pt"]


@pytest.mark.parametrize(
    ("protocol", "resumed_at", "kept"),
    [
        (PROTOCOL, 20, 10),  # 6.0 is still the best
        ({"protocol": "machado"}, 20, 30),  # by another protocol it says nothing
        (PROTOCOL, 9, 30),  # it was left behind
    ],
)
def test_a_resumed_run_compares_only_what_can_be_compared(
    run: RunDirectory, protocol: dict[str, str], resumed_at: int, kept: int
) -> None:
    settle(EvaluationLog(run, PROTOCOL), 10, 5.0, 7.0)
    log = EvaluationLog(run, protocol, replace(make_checkpoint(0), counters=Counters(updates=resumed_at)))
    settle(log, 30, 5.5)
    assert best(run) == kept


def test_a_full_disk_costs_the_result_and_nothing_else(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = EvaluationLog(run, PROTOCOL)
    with monkeypatch.context() as patch:
        patch.setattr("learner.evaluation.evaluations.save_checkpoint", full)
        settle(log, 1, 5.0)
    assert best(run) is None
    settle(log, 2, 4.0)
    assert best(run) == 2
    assert lines == ["The checkpoint to be evaluated was not kept: No space left on device"]
