"""Skipped updates are counted and logged; the last good weights are restored; then the run ends. No bad weights are saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import main
from agents import Agent, UpdateReport
from agents.vtrace.agent import VTraceAgent
from learner.metrics.writer import read_metrics
from learner.plan import make_plan
from learner.runs.checkpoint import Checkpoint, load_checkpoint, load_replay
from learner.runs.directory import RunDirectory
from learner.skipping import SkippedUpdates, SkippingError
from learner.train import train
from replay.batch import Batch
from tests.agents.support import CLEAR, make_network_here, random_batch
from tests.support import catch_flags, same, small_config, small_plan


class ReportingAgent(VTraceAgent):
    """Reports the skip reasons in `reported`. Each update changes every weight."""

    def __init__(self) -> None:
        super().__init__(CLEAR, make_network_here())
        self.reported: list[str | None] = []

    def take_skip_reasons(self, *, everything: bool = False) -> list[str | None]:
        reported, self.reported = self.reported, []
        return reported

    def move(self) -> None:
        super().learn(random_batch(), 1e-2)


def test_the_first_skip_of_a_streak_is_logged_and_an_applied_update_ends_it(lines: list[str]) -> None:
    agent = ReportingAgent()
    skipped = SkippedUpdates(agent, most=3, updates=1200)
    agent.reported = [None, "rewards", "policy_loss", None]
    skipped.look()
    agent.reported = ["gradient"]
    skipped.look()
    assert [line.split(": ")[1] for line in lines] == [
        "non-finite rewards in update 1,202",
        "non-finite gradient in update 1,205",
    ]
    assert (skipped.count, skipped.in_a_row) == (3, 1)


def test_kept_weights_and_moments_are_restored_as_often_as_needed(lines: list[str]) -> None:
    agent = ReportingAgent()
    agent.move()
    skipped = SkippedUpdates(agent, most=2, updates=1)
    agent.move()
    agent.reported = [None] * 4
    skipped.look()
    skipped.keep()
    kept = state_of(agent)
    for _ in range(2):
        agent.move()
        assert not same(state_of(agent), kept)
        agent.reported = [None, "value_loss", "value_loss"]
        skipped.look()
        assert same(state_of(agent), kept)
        agent.move()  # must not reach what is kept
    assert lines.count("2 updates in a row were skipped: the weights of update 5 are restored") == 2


def state_of(agent: VTraceAgent) -> dict[str, Any]:
    state = agent.state_dict()
    return {
        "network": {name: value.clone() for name, value in state["modules"]["network"].items()},
        "moments": [
            {name: value.clone() for name, value in one.items()} for one in state["optimizers"]["network"]["state"].values()
        ],
    }


def test_the_newest_update_counts_for_a_checkpoint() -> None:
    agent = make_late_agent()
    skipped = SkippedUpdates(agent, most=3, updates=0)
    agent.learn(random_batch(), 1e-3)
    assert skipped.newest_is_sound()
    batch = random_batch()
    batch.rewards[0, 0] = math.nan
    agent.learn(batch, 1e-3)
    skipped.look()
    assert not skipped.in_a_row
    assert not skipped.newest_is_sound()


def make_late_agent() -> VTraceAgent:
    """An agent that reads the result of its finite check one update late, as on a GPU."""
    agent = VTraceAgent(CLEAR, make_network_here())
    agent.stepper.guard.reads_late = True
    return agent


def test_twice_as_many_skips_end_the_run_with_the_first_cause() -> None:
    agent = ReportingAgent()
    skipped = SkippedUpdates(agent, most=2, updates=0)
    agent.reported = ["policy_loss", "gradient", "gradient"]
    skipped.look()
    agent.reported = ["gradient"]
    with pytest.raises(SkippingError, match=r"update 0 were restored after 2 .*: non-finite policy_loss in update 1$"):
        skipped.look()


def spoil_updates(
    monkeypatch: pytest.MonkeyPatch,
    is_bad: Callable[[int], bool],
    made_before: int = 0,
    field: str = "rewards",
    kind: type[Agent] = VTraceAgent,
) -> None:
    """Put NaN into the rewards (or another field) of the batch of every update n of such an agent for which `is_bad(n)`."""
    learn, made = kind.learn, [made_before]

    def spoilt(agent: Agent, batch: Batch, progress: float) -> UpdateReport:
        made[0] += 1
        if is_bad(made[0]):
            tensor = batch.acting[field] if field in batch.acting else getattr(batch, field)
            tensor[0, 0] = math.nan
        return learn(agent, batch, progress)

    monkeypatch.setattr(kind, "learn", spoilt)


def run_training(folder: Path, **settings: Any) -> tuple[RunDirectory, Checkpoint]:
    run = RunDirectory.create(folder, "Catch-v0")
    assert train(small_plan(environment_max_steps=1200, **settings), run, None) == 0
    return run, load_checkpoint(run.checkpoint_paths()[-1])


def test_a_run_continues_after_its_weights_were_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """No checkpoint is saved while updates are skipped."""
    spoil_updates(monkeypatch, lambda number: 9 <= number <= 12)
    run, last = run_training(tmp_path, max_skipped_updates=3, checkpoint_period=5, log_period=0.001, checkpoints_kept=9)
    assert "An update was skipped: non-finite rewards in update 9" in lines
    assert "3 updates in a row were skipped: the weights of update 5 are restored" in lines
    assert last.counters.updates >= 28
    columns = read_metrics(run.metrics)
    at = {int(update): int(count) for update, count in zip(columns["updates"], columns["updates/skipped"], strict=True)}
    assert [at[update] for update in (8, 9, 10, 11, 12, 13)] == [0, 1, 2, 3, 4, 4]
    assert at[last.counters.updates] == 4
    assert np.isfinite(columns["losses/policy_loss"][-1])
    names = [path.name for path in run.checkpoint_paths()]
    assert "update_000000005.pt" in names
    assert "update_000000010.pt" not in names
    assert "update_000000015.pt" in names


def test_without_a_checkpoint_the_first_weights_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[torch.Tensor] = []  # at the start and after each look at an update

    def listen(method: str) -> None:
        original = getattr(SkippedUpdates, method)

        def heard(skipped: SkippedUpdates, **given: bool) -> None:
            original(skipped, **given)
            heads.append(skipped._agent.network.policy_head.weight.detach().clone())

        monkeypatch.setattr(SkippedUpdates, method, heard)

    spoil_updates(monkeypatch, lambda number: 4 <= number <= 5)
    listen("keep")
    listen("look")
    run_training(tmp_path, max_skipped_updates=2)
    same_as_before = [torch.equal(one, other) for one, other in pairwise(heads)]
    assert same_as_before[:6] == [False, False, False, True, False, False]
    assert torch.equal(heads[5], heads[0])


class Killed(BaseException):
    """Ends a run at once."""


def test_a_run_that_is_killed_while_updates_are_skipped_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"reproducible": True, "max_skipped_updates": 4, "checkpoint_period": 5}

    def is_bad(number: int) -> bool:
        return 8 <= number <= 12

    def killed_at_eleven(number: int) -> bool:
        if number == 11:
            raise Killed
        return is_bad(number)

    with monkeypatch.context() as whole:
        spoil_updates(whole, is_bad)
        _, wanted = run_training(tmp_path / "whole", **settings)
    with monkeypatch.context() as first:
        spoil_updates(first, killed_at_eleven)
        with pytest.raises(Killed):
            run_training(tmp_path / "killed", **settings)
    (run,) = (RunDirectory(path) for path in (tmp_path / "killed").glob("Catch*"))
    resumed = load_checkpoint(run.checkpoint_paths()[-1])
    assert resumed.counters.updates == 5
    spoil_updates(monkeypatch, is_bad, made_before=5)
    config = small_config(environment_max_steps=1200, **settings)
    assert train(make_plan(config), run, resumed, replay=load_replay(run.replay_paths()[-1], resumed)) == 0
    got = load_checkpoint(run.checkpoint_paths()[-1])
    assert got.counters.updates == wanted.counters.updates
    assert same(got.agent, wanted.agent)


@pytest.mark.parametrize("bad_from", [1, 8])
def test_the_run_ends_with_its_first_cause_and_good_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad_from: int
) -> None:
    spoil_updates(monkeypatch, lambda number: number >= bad_from)
    flags = catch_flags(max_skipped_updates=3, checkpoint_period=5, results_dir=tmp_path)
    assert main.main(["main.py", "--op_mode=train", *flags]) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    kept = 5 if bad_from == 8 else 0
    assert last == (
        f"6 updates in a row were skipped, although the weights of update {kept} were restored after 3 "
        f"(max_skipped_updates=3); first cause: non-finite rewards in update {bad_from}"
    )
    (run,) = (RunDirectory(path) for path in tmp_path.glob("*_*"))
    assert read_metrics(run.metrics)["updates/skipped"][-1] == 6
    assert [path.name for path in run.checkpoint_paths()] == (["update_000000005.pt"] if kept else [])
    if not kept:
        return
    monkeypatch.undo()
    weights = load_checkpoint(run.checkpoint_paths()[-1]).agent["modules"]["network"].values()
    assert all(value.isfinite().all() for value in weights)
    assert main.main(["main.py", "--op_mode=train_w_load", f"--load={run.path}"]) == 0
