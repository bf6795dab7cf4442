"""The newest checkpoints, the best one and the newest replay are kept. A failed save is one line and loses nothing else."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.ranks.base import Learners
from learner.runs import saving as module
from learner.runs.checkpoint import Checkpoint, load_checkpoint, load_replay
from learner.runs.directory import RunDirectory
from learner.runs.saving import Saver, SaveTimes
from learner.settings.declarations import OutputConfig
from tests.learner.runs.support import make_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "Catch-v0")


def names(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def with_returns(update: int, *returns: float) -> Checkpoint:
    return replace(make_checkpoint(update), returns=list(returns))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("seconds", "saved_at"), [(0.0, [4, 8]), (2.5, [3, 4, 7, 8]), (100.0, [4, 8])])
def test_a_run_is_saved_by_updates_and_by_seconds_since_the_last_checkpoint(
    seconds: float, saved_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update lasts a second, and every fourth one is saved."""
    now = 50.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    times, found = SaveTimes(OutputConfig(checkpoint_period=4, checkpoint_seconds=seconds), Learners()), []
    for update in range(1, 9):
        now += 1
        if times.due(update):
            found.append(update)
            times.saved()
    assert found == saved_at


def test_only_the_newest_are_kept(run: RunDirectory) -> None:
    saver = Saver(run, kept=2, window=100)
    for updates in (1, 20, 300, 4000, 50000):
        assert saver.save(make_checkpoint(updates)) == run.checkpoint_path(updates)
        assert load_checkpoint(run.checkpoint_path(updates)).counters.updates == updates
    assert names(run) == ["update_000004000.pt", "update_000050000.pt"]


def test_saving_an_update_twice_leaves_one_file(run: RunDirectory) -> None:
    saver = Saver(run, kept=3, window=100)
    saver.save(make_checkpoint(seed=0))
    path = saver.save(make_checkpoint(seed=1))
    assert path is not None
    assert run.checkpoint_paths() == [path]
    wanted = make_checkpoint(seed=1).agent["modules"]["network"]["weight"]
    assert torch.equal(load_checkpoint(path).agent["modules"]["network"]["weight"], wanted)


def test_the_best_checkpoint_with_enough_episodes_is_kept(run: RunDirectory) -> None:
    saver = Saver(run, kept=1, window=2)
    best = []
    for update, returns in enumerate([(9.0,), (1.0, 1.0), (5.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)], start=1):
        saver.save(with_returns(update, *returns))
        best.append(load_checkpoint(run.best).counters.updates if run.best.exists() else None)
    assert best == [None, 2, 3, 3, 3, 6]  # one episode is no full window; as good as the best is no better
    assert names(run) == ["best.pt", "update_000000006.pt"]


def test_the_best_is_kept_on_a_system_without_links(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", full)
    Saver(run, kept=1, window=1).save(with_returns(1, 2.0))
    assert load_checkpoint(run.best).counters.updates == 1


def test_a_resumed_run_compares_with_the_best_so_far(run: RunDirectory) -> None:
    Saver(run, kept=1, window=1).save(with_returns(10, 5.0))
    saver = Saver(run, kept=1, window=1, resumed=with_returns(20, 0.0))
    saver.save(with_returns(30, 4.0))
    assert load_checkpoint(run.best).counters.updates == 10
    saver.save(with_returns(40, 6.0))
    assert load_checkpoint(run.best).counters.updates == 40


def test_a_best_of_a_later_update_is_renamed_and_logged(run: RunDirectory, lines: list[str]) -> None:
    Saver(run, kept=1, window=1).save(with_returns(10, 5.0))
    saver = Saver(run, kept=1, window=1, resumed=with_returns(9, 0.0))
    (line,) = lines
    assert line.endswith(str(run.checkpoints / "left_behind_best.pt"))
    saver.save(with_returns(11, 4.0))
    assert load_checkpoint(run.best).counters.updates == 11
    assert load_checkpoint(run.checkpoints / "left_behind_best.pt").counters.updates == 10


def test_a_best_of_another_protocol_is_renamed_and_not_compared(run: RunDirectory, lines: list[str]) -> None:
    Saver(run, kept=1, window=1).save(with_returns(10, 5.0))
    saver = Saver(run, kept=1, window=1, resumed=replace(with_returns(20), protocol={"env": "another"}))
    (line,) = lines
    assert line.endswith(str(run.checkpoints / "left_behind_best.pt"))
    saver.save(replace(with_returns(30, 4.0), protocol={"env": "another"}))
    assert load_checkpoint(run.best).counters.updates == 30
    assert load_checkpoint(run.checkpoints / "left_behind_best.pt").counters.updates == 10


def test_a_second_rewind_keeps_the_best_of_the_first(run: RunDirectory) -> None:
    for update in (10, 12):
        Saver(run, kept=1, window=1).save(with_returns(update, 5.0))
        Saver(run, kept=1, window=1, resumed=with_returns(9, 0.0))
    kept = {path.name: load_checkpoint(path).counters.updates for path in run.checkpoints.glob("left_behind_best*")}
    assert kept == {"left_behind_best.pt": 10, "left_behind_best_2.pt": 12}


def test_a_run_killed_before_it_kept_its_best_keeps_it_when_resumed(run: RunDirectory) -> None:
    Saver(run, kept=1, window=1).save(with_returns(10, 5.0))
    run.best.unlink()
    Saver(run, kept=1, window=1, resumed=with_returns(10, 5.0)).save(with_returns(20, 4.0))
    assert load_checkpoint(run.best).counters.updates == 10


def test_a_damaged_best_is_ignored_and_logged(run: RunDirectory, lines: list[str]) -> None:
    run.best.write_bytes(b"damaged")
    Saver(run, kept=1, window=1, resumed=with_returns(0, 0.0)).save(with_returns(1, -5.0))
    assert load_checkpoint(run.best).counters.updates == 1
    assert len(lines) == 1
    assert str(run.best) in lines[0]


def test_a_save_that_fails_is_one_line_and_the_one_before_stays(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(run, kept=1, window=100)
    saver.save(make_checkpoint(1))
    with monkeypatch.context() as patch:
        patch.setattr("learner.runs.checkpoint.torch.save", full)
        assert saver.save(make_checkpoint(1000)) is None
    assert lines == ["The checkpoint of update 1,000 was not saved: No space left on device"]
    assert saver.error == "No space left on device"
    assert names(run) == ["update_000000001.pt"]
    load_checkpoint(run.checkpoint_path(1))
    assert saver.save(make_checkpoint(2000)) == run.checkpoint_path(2000)
    assert saver.error is None
    assert names(run) == ["update_000002000.pt"]


def test_a_removed_checkpoint_folder_is_made_again(run: RunDirectory) -> None:
    run.checkpoints.rmdir()
    assert Saver(run, kept=1, window=100).save(make_checkpoint()) is not None


def test_the_next_save_removes_half_written_files(run: RunDirectory) -> None:
    for name in (".update_000000009.pt_4242", ".replay_000000009.pt_4242", ".best.pt_4242"):
        (run.checkpoints / name).write_text("half")
    Saver(run, kept=1, window=100).save(make_checkpoint(5))
    assert names(run) == ["update_000000005.pt"]


def state(number: int) -> dict[str, Any]:
    return {"number": number}


def test_one_replay_is_kept_and_belongs_to_the_newest_checkpoint(run: RunDirectory) -> None:
    saver = Saver(run, kept=3, window=100)
    for update in (1, 2, 3):
        saver.save(make_checkpoint(update), state(update))
    assert names(run) == ["replay_000000003.pt", *(f"update_00000000{update}.pt" for update in (1, 2, 3))]
    assert load_replay(run.replay_path(3), load_checkpoint(run.checkpoint_path(3))) == state(3)


def test_replays_of_other_learners_are_kept_with_their_checkpoint(run: RunDirectory) -> None:
    sums: list[str | None] = ["a" * 64, None]
    saver = Saver(run, kept=2, window=1, rank_replays=lambda: sums)
    for update in (10, 20):
        run.replay_path(update, 1).touch()
        saver.save(make_checkpoint(update), state(update))
    assert set(run.replay_paths()) == {run.replay_path(20), run.replay_path(20, 1)}
    saved = load_checkpoint(run.checkpoint_path(20))
    assert saved.rank_replays == ("a" * 64, None)
    assert [saved.of_rank(rank).replay for rank in (1, 2, 3)] == ["a" * 64, None, None]


def test_a_checkpoint_without_a_replay_has_no_checksum_of_one(run: RunDirectory) -> None:
    path = Saver(run, kept=3, window=100).save(make_checkpoint(1))
    assert path is not None
    assert load_checkpoint(path).replay is None
    assert names(run) == [path.name]


def test_the_earlier_replay_stays_until_the_next_checkpoint_is_saved(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(run, kept=1, window=100)
    saver.save(make_checkpoint(1), state(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", full)
        assert saver.save(make_checkpoint(2), state(2)) is None
    assert load_replay(run.replay_path(1), load_checkpoint(run.checkpoint_path(1))) == state(1)
    saver.save(make_checkpoint(3), state(3))
    assert names(run) == ["replay_000000003.pt", "update_000000003.pt"]


def test_a_checkpoint_is_saved_without_a_replay_that_has_no_room(
    run: RunDirectory, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(run, kept=2, window=100)
    saver.save(make_checkpoint(1), state(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_replay", full)
        path = saver.save(make_checkpoint(2), state(2))
    assert path is not None
    assert load_checkpoint(path).replay is None
    assert lines == ["The replay of update 2 was not saved: No space left on device"]
    assert names(run) == ["replay_000000001.pt", "update_000000001.pt", "update_000000002.pt"]


def test_a_replay_is_removed_with_its_checkpoint(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(run, kept=1, window=100)
    saver.save(make_checkpoint(1), state(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_replay", full)
        saver.save(make_checkpoint(2), state(2))
    assert names(run) == ["update_000000002.pt"]


def test_a_save_succeeds_if_old_files_cannot_be_removed(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = Saver(run, kept=1, window=100)
    saver.save(make_checkpoint(1))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == run.checkpoint_path(1):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert saver.save(make_checkpoint(2)) is not None
    saver.save(make_checkpoint(3))
    assert names(run) == ["update_000000003.pt"]
