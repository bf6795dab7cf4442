"""Hooks are called at their places in the loop, and are no part of the updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agents import UpdateReport
from learner import train as module
from learner.hooks import Hook
from learner.parts import Parts
from learner.runs.checkpoint import Checkpoint
from replay.batch import HostBatch
from tests.learner.test_train import run_training
from tests.support import same

SETTINGS: dict[str, Any] = {
    "environment_max_steps": 200,
    "checkpoint_period": 4,
    "reproducible": True,
    "calibrate_input": False,
}
UPDATE = ["wait", "batch", "update", "on_batch 0", "publish", "on_update 1"]


class Tape(Hook):
    """Writes its calls down, each with what the run has counted."""

    def __init__(self, name: str, tape: list[tuple[str, str]], parts: Parts) -> None:
        self.name, self.tape, self.counters = name, tape, parts.counting.counters

    def note(self, call: str) -> None:
        self.tape.append((self.name, call))

    def on_start(self) -> None:
        self.note("on_start")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.note(name)
        yield
        self.note(f"end of {name}")

    def on_batch(self, batch: HostBatch, report: UpdateReport) -> None:
        assert batch.columns["policy_version"].max() <= self.counters.updates
        self.note(f"on_batch {self.counters.updates}")

    def on_update(self) -> None:
        self.note(f"on_update {self.counters.updates}")

    def on_checkpoint(self) -> None:
        self.note(f"on_checkpoint {self.counters.updates}")

    def on_end(self, saved: Path | None, *, interrupted: bool, asked: Callable[[], bool]) -> None:
        assert saved is not None
        assert saved.is_file()
        self.note(f"on_end {interrupted} {asked()}")

    def close(self) -> None:
        self.note("close")


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[str, str]], Checkpoint]:
    """The calls of two hooks, which take the place of the usual ones, and the last checkpoint."""
    tape: list[tuple[str, str]] = []

    def two(parts: Parts, *_: object, **__: object) -> Sequence[Hook]:
        return [Tape("first", tape, parts), Tape("second", tape, parts)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_make_hooks", two)
        _, checkpoint = run_training(tmp_path_factory.mktemp("taped"), **SETTINGS)
    return tape, checkpoint


def test_each_hook_is_called_at_its_place(taped: tuple[list[tuple[str, str]], Checkpoint]) -> None:
    tape, checkpoint = taped
    last = checkpoint.counters.updates
    for name in ("first", "second"):
        calls = [call for caller, call in tape if caller == name and not call.startswith("end of")]
        assert calls[: 1 + len(UPDATE)] == ["on_start", *UPDATE]
        assert calls.index("on_checkpoint 4") == calls.index("on_update 4") + 1
        assert calls[-3:] == [f"on_checkpoint {last}", "on_end False False", "close"]


def test_hooks_end_in_the_opposite_order(taped: tuple[list[tuple[str, str]], Checkpoint]) -> None:
    tape, _ = taped
    turns = {call: [name for name, made in tape if made == call][:2] for _, call in tape}
    opposite = {call for call, names in turns.items() if names == ["second", "first"]}
    assert opposite == {"on_end False False", "close", *(f"end of {name}" for name in ("wait", "batch", "update", "publish"))}


def test_a_run_without_the_usual_hooks_learns_the_same(taped: tuple[list[tuple[str, str]], Checkpoint], tmp_path: Path) -> None:
    _, usual = run_training(tmp_path, **SETTINGS)
    _, bare = taped
    assert same(usual.agent, bare.agent)
    assert same(usual.generators, bare.generators)
    assert {**vars(usual.counters), "seconds": 0.0} == {**vars(bare.counters), "seconds": 0.0}


def test_a_hook_that_fails_at_the_end_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Failing(Hook):
        def close(self) -> None:
            closed.append("hook")
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_make_hooks", lambda *_, **__: [Failing(), Failing()])

    def stop(parts: Parts) -> None:
        closed.append("parts")
        parts.workers.stop()

    monkeypatch.setattr(Parts, "stop", stop)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, **SETTINGS)
    assert closed == ["hook", "hook", "parts"]
